"""A look at where a step's time goes: some steps of each attempt, as a trace to open offline.

The trace is in Chrome's format: chrome://tracing opens it with no connection to anywhere, and so
does a local copy of Perfetto.
"""

import errno
import os
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

AFTER = 3  # steps, in which torch still makes up its mind


class StepProfiler:
    """Watches `steps` steps of a rank, once it has taken a few; none if that is 0."""

    def __init__(self, folder: Path, *, attempt: int, rank: int, steps: int) -> None:
        """Leave the trace in `folder`."""
        self.file = folder / f"attempt-{attempt:04d}-rank-{rank}.json"
        self._steps = steps
        self._taken = 0
        self._running: profile | None = None

    def step(self) -> bool:
        """Say that a step has been taken; True when the trace has just been written.

        Raises:
            OSError: The disk did not take the trace; the steps are watched no more.
        """
        self._taken += 1
        if self._steps and self._taken == AFTER:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._running = profile(activities=activities, record_shapes=True)
            self._running.start()
        elif self._running is not None and self._taken == AFTER + self._steps:
            self.close()
            return True
        return False

    def close(self) -> bool:
        """Write what was seen so far, if anything is still watched; True if it was written.

        Raises:
            OSError: The disk did not take it.
        """
        if self._running is None:
            return False
        running, self._running = self._running, None
        running.stop()
        self.file.parent.mkdir(exist_ok=True)
        running.export_chrome_trace(str(self.file))
        if not self.file.exists():  # torch prints that a full disk refused, and raises nothing
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file))
        return True
