"""Saving beside training: one thread writes what was copied to host memory.

What the disk refuses is tried again a few times, and told each time; after that it is an error of
the run, for a run that saves nothing must not go on for weeks.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from trainer.checkpoint import Snapshot, check_room, checkpoint_name, commit, write_part
from trainer.retention import drop_old
from trainer.settings import CheckpointSettings

DEADLINE_S = 300.0
RETRY_S = 1.0  # before the first retry; doubled before each further one


class Saver:
    """A rank's writer of checkpoints; one save at a time, the next waits for the last.

    Attributes:
        committed: Step of the newest checkpoint whose save has ended here, or -1.
        notes: Sentences for a person, as they come up; the loop takes them from here.
    """

    def __init__(
        self,
        folder: Path,
        *,
        attempt: int,
        rank: int,
        world_size: int,
        settings: CheckpointSettings,
        value_of: Callable[[int], float | None],
        check_lease: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._attempt = attempt
        self._rank = rank
        self._world_size = world_size
        self._settings = settings
        self._value_of = value_of
        self._check_lease = check_lease
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._running: Future[int] | None = None
        self.committed = -1
        self.notes: deque[str] = deque()

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
        """Save, and again a few times if the disk refuses."""
        for retry in range(self._settings.retries):
            try:
                return self._save_once(snapshot)
            except OSError as error:
                delay_s = RETRY_S * 2**retry
                self.notes.append(
                    f"The checkpoint of step {snapshot.step} could not be written ({error}). "
                    f"Training goes on; it is tried again in {delay_s:.0f} s."
                )
                time.sleep(delay_s)
        return self._save_once(snapshot)

    def _save_once(self, snapshot: Snapshot) -> int:
        name = checkpoint_name(snapshot.step, self._attempt)
        part, target = self._folder / f"{name}.part", self._folder / name
        check_room(self._folder, size_bytes=snapshot.size_bytes)
        write_part(snapshot, part, rank=self._rank)
        if self._rank == 0:
            self._check_lease()
            commit(part, target, world_size=self._world_size, deadline_s=DEADLINE_S)
            drop_old(
                self._folder,
                keep=self._settings,
                attempt=self._attempt,
                value_of=self._value_of,
            )
        return snapshot.step
