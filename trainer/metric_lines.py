"""Rank 0's metric lines on their way: into metrics.jsonl, then to the driver.

What the disk refuses waits in memory and is written later, in order: what ends a run on a full disk
is a save, which is tried again, and never a line. No checkpoint is committed before its lines.
"""

import math
import threading
import time
from collections import deque
from typing import Any

from trainer.board import Reporter
from trainer.run_folder import RunFolder


class MetricLines:
    """The lines of one attempt; the loop and the saving thread may both write."""

    def __init__(self, folder: RunFolder, *, attempt: int, reporter: Reporter) -> None:
        self._folder, self._attempt, self._reporter = folder, attempt, reporter
        self._waiting: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()

    def write(self, line: dict[str, Any]) -> None:
        """Write a line and hand it to the driver.

        Raises:
            OvertakenError: A later attempt owns the run; the driver is not told either.
        """
        line = finite(line) | {"attempt": self._attempt, "time": int(time.time() * 1000)}
        with self._lock:
            self._waiting.append(line)
            waiting = len(self._waiting)
        try:
            self.flush()
        except OSError as error:
            if waiting == 1:
                self._reporter.note(
                    f"{self._folder.named(str(self._folder.metrics))} cannot be written ({error}). "
                    "Training goes on; its lines are kept and written later, at the next "
                    "checkpoint at the latest."
                )
        self._reporter.line(line)

    def flush(self, *, sync: bool = False) -> None:
        """Write the lines that wait, in order.

        Args:
            sync: See that they are on the disk.

        Raises:
            OvertakenError: A later attempt owns the run.
            OSError: The disk refuses; what is not written goes on waiting.
        """
        with self._lock:
            if self._waiting:
                self._folder.check_lease(self._attempt)
            while self._waiting:
                self._folder.add_line(self._waiting[0])
                self._waiting.popleft()
        if sync:  # without the lock: the loop, which has lines to write, does not wait for the disk
            self._folder.sync_lines()


def finite(line: dict[str, Any]) -> dict[str, Any]:
    """A line with null where JSON has no number: the loss of a step that was skipped."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in line.items()
    }
