"""How far a long piece of work is: a bar when a person looks, a line now and then when not."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

from tqdm import tqdm

from jobs.visible import echo, visible

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """One piece of work, shown on standard error.

    Args:
        title: What is being done: "tokenizing".
        unit: What is counted: "documents".
        person: A bar instead of lines; None looks whether standard error is a terminal.
        clock: Seconds from any start.
    """

    def __init__(
        self,
        title: str,
        *,
        unit: str,
        person: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._unit = unit
        self._clock = clock
        self._said = clock()
        self._first: tuple[float, int] | None = None  # clock and what was done when first told
        look = sys.stderr.isatty() if person is None else person
        self._lines: list[tqdm[NoReturn]] = []  # below the bar
        shown, scaled = ("B", True) if unit == "bytes" else (f" {unit}", False)
        self._bar = tqdm(desc=title, unit=shown, unit_scale=scaled, leave=False) if look else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            for line in reversed(self._lines):
                line.close()
            if self._bar is not None:
                self._bar.close()

    def show(
        self, done: int, total: int | None = None, note: str = "", details: Sequence[str] = ()
    ) -> None:
        """Say that `done` of `total` is done.

        Args:
            done: In units.
            total: In units, if known.
            note: Shown beside it.
            details: Lines that stand below the bar, for a person only.

        What nobody can see any more, for the terminal was closed, is not said.
        """
        with suppress(OSError):
            self._show(done, total, note, details)

    def _show(self, done: int, total: int | None, note: str, details: Sequence[str]) -> None:
        if self._bar is not None:
            for place, detail in enumerate(details):
                if place == len(self._lines):
                    line = tqdm(bar_format="{desc}", position=place + 1, leave=False)
                    self._lines.append(line)
                self._lines[place].set_description_str(visible(detail))
            self._bar.total = total
            self._bar.set_postfix_str(visible(note), refresh=False)
            self._bar.update(done - self._bar.n)
            return
        now = self._clock()
        self._first = self._first or (now, done)
        if now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            of = f" of {total:,}" if total is not None else ""
            tail = f", {note}" if note else ""
            tail += self._left(now, done, total)
            echo(f"{self._title}: {done:,}{of} {self._unit}{tail}", err=True)

    def _left(self, now: float, done: int, total: int | None) -> str:
        """How long it will take from `now` on, as a bar says too; empty where nobody can tell."""
        began, before = self._first or (now, done)
        if total is None or done <= before or now <= began:
            return ""
        left_s = (total - done) * (now - began) / (done - before)
        return f", {tqdm.format_interval(left_s)} left"
