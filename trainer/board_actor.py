"""The board in an actor of its own, and the ways to it: a worker's, and the driver's."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from trainer.board import Board, Entered, News, Verdict

CARRY_S = 0.25
STARTS = 4  # deadlines that a board has for its first answer: its process must start


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Handles of Ray that came to the board since the driver last asked.

    Attributes:
        workers: The actors that hold a rank.
        places: The placement groups they stand in.
        controllers: Ray Train's own actor.
    """

    workers: list[Any] = field(default_factory=list)
    places: list[Any] = field(default_factory=list)
    controllers: list[Any] = field(default_factory=list)


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class BoardActor:
    """Board behind Ray, and who stands at it.

    A board that dies loses the lines on it: the driver fills them in from metrics.jsonl at the end.
    """

    def __init__(self) -> None:
        self._board = Board()
        self._arrivals = Arrivals()

    @ray.method
    def push(self, lines: list[dict[str, Any]], notes: list[str], moved: bool) -> str:
        return self._board.push(lines, notes, moved=moved)

    @ray.method
    def drain(self, stop: str) -> tuple[News, Arrivals]:
        self._board.ask_stop(stop)
        arrivals, self._arrivals = self._arrivals, Arrivals()
        return self._board.drain(), arrivals

    @ray.method
    def failed(self, error: str, collateral: bool) -> None:
        self._board.failed(error, collateral=collateral)

    @ray.method
    def lost(self, error: str) -> None:
        self._board.lost(error)

    @ray.method
    def end(self, verdict: Verdict) -> None:
        self._board.end(verdict)

    @ray.method
    def enter(self, rank: int, worker: Any, place: Any) -> Entered:
        self._arrivals.workers.append(worker)
        self._arrivals.places.append(place)
        return self._board.enter(rank)

    @ray.method
    def enter_controller(self, controller: Any) -> None:
        self._arrivals.controllers.append(controller)


class BoardReporter:
    """A worker's side of the board: a thread carries lines up and the wish to stop down."""

    def __init__(self, board: Any, *, drains: Callable[[], str] = str) -> None:
        """Begin to carry; `drains` says why this worker's node goes away, or is empty."""
        self._board = board
        self._drains = drains
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
        return self._stop or self._drains()

    def failed(self, error: str, *, collateral: bool) -> None:
        """Say what this worker dies of."""
        ray.get(self._board.failed.remote(error, collateral))

    def close(self, verdict: Verdict | None = None) -> None:
        """Carry the last lines up, and the verdict after them; end the thread."""
        self._closed.set()
        self._thread.join()
        if verdict is not None:
            ray.get(self._board.end.remote(verdict))

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


class BoardWatch:
    """The driver's side of the board: it never waits for it, and has one that hangs replaced.

    Attributes:
        actor: The board, for those who are told where it is.
    """

    def __init__(self, *, deadline_s: float) -> None:
        """Start a board, which is ended when it has not answered for `deadline_s`."""
        self.actor: Any = BoardActor.remote()
        self._deadline_s = deadline_s
        self._asked: Any = None
        self._asked_since = 0.0
        self._has_answered = False

    def drain(self, stop: str, *, wait_s: float) -> tuple[News, Arrivals] | None:
        """What came up since the last time; None if there was no answer within `wait_s`.

        Args:
            stop: Why the workers are to stop; empty lets them go on.
            wait_s: Seconds to wait; the next call waits for the same answer.
        """
        if self._asked is None:
            self._asked, self._asked_since = self.actor.drain.remote(stop), time.monotonic()
        ready, _ = ray.wait([self._asked], timeout=wait_s)
        if not ready:
            waited_s = time.monotonic() - self._asked_since
            if waited_s > self._deadline_s * (1 if self._has_answered else STARTS):
                ray.kill(self.actor, no_restart=False)  # what was asked is asked of the next one
                self._asked_since, self._has_answered = time.monotonic(), False
            return None
        answer, self._asked = self._asked, None
        self._has_answered = True
        try:
            return ray.get(answer)
        except RayError:  # it died while it answered: the next answer is of another one
            return None
