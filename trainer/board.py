"""What the driver and the workers tell each other: lines up, a wish to stop down.

The board is a plain object; launch_ray.py puts an actor around it, launch_local.py uses it as is.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How an attempt ended, decided by the workers together.

    Attributes:
        status: "done", "stopped" (after a checkpoint), "failed" (would fail again) or "gave up".
        reason: A sentence for a person; empty when done.
        kind: Of a failure: "config", "data", "overtaken" or "error"; it decides the exit code.
        step: Steps done.
    """

    status: str
    reason: str = ""
    kind: str = ""
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What came up from the workers since the driver last asked.

    Attributes:
        lines: Metric lines, in the order they were reported.
        notes: Sentences for a person.
        silent_s: Seconds since the workers last did anything.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """What a worker is told when it comes to the board.

    Attributes:
        starts: Times its rank has come, this one included, since a checkpoint was last told of.
        first_error: What a worker first died of since then; empty if none left word.
    """

    starts: int
    first_error: str


class Board:
    """The meeting place of a driver and its workers."""

    def __init__(self) -> None:
        self._starts: Counter[int] = Counter()
        self._errors: list[str] = []
        self._lines: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._stop = ""
        self._beat = time.monotonic()

    def push(self, lines: list[dict[str, Any]], notes: list[str], *, moved: bool) -> str:
        """Workers: hand lines and notes up; the answer is why to stop, or empty.

        `moved` says that a step was taken, or something else done, since the last call. A worker
        that only waits for another one that hangs has not moved.
        """
        self._lines += lines
        self._notes += notes
        if any(line["kind"] == "checkpoint" for line in lines):  # progress: all is forgiven
            self._starts.clear()
            self._errors.clear()
        if moved:
            self._beat = time.monotonic()
        return self._stop

    def enter(self, rank: int) -> Entered:
        """Workers: say that `rank` has been started."""
        self._starts[rank] += 1
        self._beat = time.monotonic()
        first = self._errors[0] if self._errors else ""
        return Entered(starts=self._starts[rank], first_error=first)

    def rest(self) -> None:
        """Driver: count the silence from now on."""
        self._beat = time.monotonic()

    def failed(self, error: str) -> None:
        """Workers: say what one dies of; the first one is the cause, the others lost a peer."""
        self._errors.append(error)
        if len(self._errors) == 1:
            self._notes.append(f"A worker failed. {error}")

    def drain(self) -> News:
        """Driver: take what has come since the last call."""
        news = News(lines=self._lines, notes=self._notes, silent_s=time.monotonic() - self._beat)
        self._lines, self._notes = [], []
        return news

    def ask_stop(self, reason: str) -> None:
        """Driver: ask the workers to stop after the current step."""
        self._stop = reason


class Reporter(Protocol):
    """A worker's side of the board."""

    def line(self, values: dict[str, Any]) -> None:
        """Hand a metric line to the driver."""
        ...

    def note(self, sentence: str) -> None:
        """Tell the person at the driver something."""
        ...

    def beat(self) -> None:
        """Say that the workers move."""
        ...

    def stop_reason(self) -> str:
        """Why to stop, or empty; never waits."""
        ...


class LocalReporter:
    """Reports to a board in the same process."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def line(self, values: dict[str, Any]) -> None:
        self._board.push([values], [], moved=True)

    def note(self, sentence: str) -> None:
        self._board.push([], [sentence], moved=False)

    def beat(self) -> None:
        self._board.push([], [], moved=True)

    def stop_reason(self) -> str:
        return self._board.push([], [], moved=False)
