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
        quiet_s: Seconds since any of them last said anything, be it that it waits.
        verdict: How the attempt ended, if a worker has said it.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    silent_s: float = 0.0
    quiet_s: float = 0.0
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """What a worker is told when it comes to the board.

    Attributes:
        starts: Times its rank has come, this one included, since a checkpoint was last told of.
        first_error: What a worker first died of since then; empty if none left word.
        verdict: How all ended, if a worker has said it already: nothing is left to do.
    """

    starts: int
    first_error: str
    verdict: Verdict | None = None


class Board:
    """The meeting place of a driver and its workers."""

    def __init__(self) -> None:
        self._starts: Counter[int] = Counter()
        self._causes: list[str] = []
        self._collateral: list[str] = []
        self._lines: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._stop = ""
        self._verdict: Verdict | None = None
        self._beat = self._word = time.monotonic()

    def push(self, lines: list[dict[str, Any]], notes: list[str], *, moved: bool) -> str:
        """Workers: hand lines and notes up; the answer is why to stop, or empty.

        `moved` says that a step was taken, or something else done, since the last call. A worker
        that only waits for another one that hangs has not moved.
        """
        self._word = time.monotonic()
        self._lines += lines
        self._notes += notes
        if any(line["kind"] == "checkpoint" for line in lines):  # progress: all is forgiven
            self._starts.clear()
            self._causes.clear()
            self._collateral.clear()
        if moved:
            self._beat = time.monotonic()
        return self._stop

    def enter(self, rank: int) -> Entered:
        """Workers: say that `rank` has been started."""
        self._starts[rank] += 1
        self._beat = self._word = time.monotonic()
        if not self._causes and self._collateral:  # nobody has told the cause, nor will any more
            self.failed(f"One left no word. {self._collateral[0]}")
        first = self._causes[0] if self._causes else ""
        return Entered(starts=self._starts[rank], first_error=first, verdict=self._verdict)

    def end(self, verdict: Verdict) -> None:
        """Workers: say how the attempt ended; each of them says the same."""
        self._verdict = verdict

    def failed(self, error: str, *, collateral: bool = False) -> None:
        """Say what a worker dies of, or what it met because another one had gone before.

        The first cause is told at once, what came of it only if no cause is told before the workers
        start again.
        """
        if collateral:
            self._collateral.append(error)
            return
        self._causes.append(error)
        if len(self._causes) == 1:
            self._notes.append(f"A worker failed. {error}")

    def lost(self, error: str) -> None:
        """Say how a worker died, which may have said it itself."""
        if not self._causes:
            self.failed(error)

    def drain(self) -> News:
        """Driver: take what has come since the last call."""
        now = time.monotonic()
        news = News(
            lines=self._lines,
            notes=self._notes,
            silent_s=now - self._beat,
            quiet_s=now - self._word,
            verdict=self._verdict,
        )
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
