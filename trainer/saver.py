"""Saving beside training: one thread writes what was copied to host memory."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from trainer.checkpoint import (
    CheckpointError,
    Snapshot,
    checkpoint_name,
    commit,
    drop_old,
    write_part,
)
from trainer.run_folder import RunFolder

DEADLINE_S = 300.0


class Saver:
    """A rank's writer of checkpoints; one save at a time, the next waits for the last.

    Attributes:
        committed: Step of the newest checkpoint whose save has ended here, or -1.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        attempt: int,
        rank: int,
        world_size: int,
        keep_last: int,
        beat: Callable[[], None],
    ) -> None:
        """Write into `run` as `attempt`; `beat` is called while somebody waits for a save."""
        self._run = run
        self._attempt = attempt
        self._rank = rank
        self._world_size = world_size
        self._keep_last = keep_last
        self._beat = beat
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._running: Future[int] | None = None
        self._closed = threading.Event()
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
        if self._running is None:
            return
        while not wait([self._running], timeout=1).done:
            self._beat()
        running, self._running = self._running, None
        self.committed = running.result()

    def close(self) -> None:
        """End the thread; a save in progress is given up, and is then no checkpoint."""
        self._closed.set()
        self._thread.shutdown()

    def _save(self, snapshot: Snapshot) -> int:
        name = checkpoint_name(snapshot.step, self._attempt)
        folder = self._run.checkpoints
        write_part(snapshot, folder / f"{name}.part", rank=self._rank)
        if self._rank == 0:
            commit(
                folder / f"{name}.part",
                folder / name,
                world_size=self._world_size,
                deadline_s=DEADLINE_S,
                may_go_on=self._may_go_on,
            )
            drop_old(folder, self._run.attempts(), keep_last=self._keep_last)
        return snapshot.step

    def _may_go_on(self) -> None:
        if self._closed.is_set():
            raise CheckpointError("The save was given up: its attempt has ended.")
        self._run.check_lease(self._attempt)
