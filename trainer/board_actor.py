"""The board in an actor of its own, and a worker's way to it."""

import threading
from typing import Any

import ray
from ray.exceptions import RayError

from trainer.board import Board, Entered, News

CARRY_S = 0.25


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=3)
class BoardActor:
    """Board behind Ray, and the workers that stand at it.

    A board that dies loses the lines on it: the driver fills them in from metrics.jsonl at the end.
    """

    def __init__(self) -> None:
        self._board = Board()
        self._workers: list[Any] = []
        self._places: list[Any] = []

    @ray.method
    def push(self, lines: list[dict[str, Any]], notes: list[str], moved: bool) -> str:
        return self._board.push(lines, notes, moved=moved)

    @ray.method
    def drain(self) -> News:
        return self._board.drain()

    @ray.method
    def ask_stop(self, reason: str) -> None:
        self._board.ask_stop(reason)

    @ray.method
    def failed(self, error: str) -> None:
        self._board.failed(error)

    @ray.method
    def enter(self, rank: int, worker: Any, place: Any) -> Entered:
        self._workers.append(worker)
        self._places.append(place)
        return self._board.enter(rank)

    @ray.method
    def take_places(self) -> list[Any]:
        places, self._places = self._places, []
        return [place for place in places if place is not None]

    @ray.method
    def take_workers(self) -> list[Any]:
        workers, self._workers = [one for one in self._workers if one is not None], []
        self._board.rest()
        return workers


class BoardReporter:
    """A worker's side of the board: a thread carries lines up and the wish to stop down."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._lines: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._lock = threading.Lock()
        self._moved = True
        self._stop: Any = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="reporter", daemon=True)
        self._thread.start()

    def line(self, values: dict[str, Any]) -> None:
        with self._lock:
            self._lines.append(values)
            self._moved = True

    def note(self, sentence: str) -> None:
        with self._lock:
            self._notes.append(sentence)

    def beat(self) -> None:
        self._moved = True

    def stop_reason(self) -> str:
        return self._stop

    def failed(self, error: str) -> None:
        """Say what this worker dies of."""
        ray.get(self._board.failed.remote(error))

    def close(self) -> None:
        """Carry the last lines up and end the thread."""
        self._closed.set()
        self._thread.join()

    def _carry(self) -> None:
        last = False
        while not last:
            last = self._closed.wait(CARRY_S)
            with self._lock:
                lines, self._lines = self._lines, []
                notes, self._notes = self._notes, []
                moved, self._moved = self._moved, False
            try:
                said: Any = ray.get(self._board.push.remote(lines, notes, moved))
            except RayError:  # the board has died: Ray starts it again, and all is tried again
                with self._lock:
                    self._lines, self._notes = lines + self._lines, notes + self._notes
                    self._moved |= moved
                continue
            self._stop = said or self._stop
