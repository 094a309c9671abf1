"""Saving beside training: one thread writes what was copied to host memory."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from trainer.checkpoint import (
    Snapshot,
    checkpoint_name,
    commit,
    drop_old,
    write_part,
)

DEADLINE_S = 300.0


class Saver:
    """A rank's writer of checkpoints; one save at a time, the next waits for the last.

    Attributes:
        committed: Step of the newest checkpoint whose save has ended here, or -1.
    """

    def __init__(
        self,
        folder: Path,
        *,
        attempt: int,
        rank: int,
        world_size: int,
        keep_last: int,
        check_lease: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._attempt = attempt
        self._rank = rank
        self._world_size = world_size
        self._keep_last = keep_last
        self._check_lease = check_lease
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._running: Future[int] | None = None
        self.committed = -1

    def start(self, snapshot: Snapshot) -> None:
        """Begin to write `snapshot`, after the save before it is done.

        Raises:
            OSError: The save before it failed; likewise CheckpointError and ConfigError.
        """
        self.wait()
        self._running = self._thread.submit(self._save, snapshot)

    def poll(self) -> None:
        """Take note of a save that has ended; raises what it raised."""
        if self._running is not None and self._running.done():
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written; raises what the save raised."""
        if self._running is not None:
            running, self._running = self._running, None
            self.committed = running.result()

    def close(self) -> None:
        """Wait for the save in progress and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _save(self, snapshot: Snapshot) -> int:
        name = checkpoint_name(snapshot.step, self._attempt)
        part = self._folder / f"{name}.part"
        write_part(snapshot, part, rank=self._rank)
        if self._rank == 0:
            self._check_lease()
            commit(part, self._folder / name, world_size=self._world_size, deadline_s=DEADLINE_S)
            drop_old(self._folder, keep_last=self._keep_last, attempt=self._attempt)
        return snapshot.step
