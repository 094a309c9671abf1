"""Saving beside training: one thread writes what was copied to host memory.

What the disk refuses is tried again a few times, and told each time; after that it is an error of
the run, for a run that saves nothing must not go on for weeks.
"""

import shutil
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from pipeline.errors import DataError
from trainer.checkpoint import CheckpointError, checkpoint_name, living
from trainer.errors import OvertakenError
from trainer.remote_commit import commit_there, put_part
from trainer.remote_run import RemoteRun
from trainer.retention import drop_old
from trainer.run_folder import RunFolder
from trainer.settings import CheckpointSettings
from trainer.snapshot import Snapshot, check_finite, check_room, commit, drop_part, write_part

DEADLINE_S = 300.0
RETRY_S = 1.0  # before the first retry; doubled before each further one


class Saver:
    """A rank's writer of checkpoints; one save at a time, the next waits for the last.

    Attributes:
        committed: Steps whose save has ended here, oldest first; the loop takes them from here.
    """

    def __init__(  # noqa: PLR0913 - what a writer must know, each once
        self,
        run: RunFolder,
        *,
        attempt: int,
        rank: int,
        world_size: int,
        settings: CheckpointSettings,
        patience_s: float = 0.0,
        value_of: Callable[[int], float | None],
        beat: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        """Write into `run` as `attempt`.

        Rank 0 waits `patience_s` for the files of the others, and never less than DEADLINE_S;
        `beat` is called while somebody waits for a save; `note` takes sentences for a person, from
        the thread that writes, so that they are told while the others wait for it.
        """
        self._run = run
        self._attempt = attempt
        self._rank = rank
        self._world_size = world_size
        self._settings = settings
        self._deadline_s = max(patience_s, DEADLINE_S)
        self._value_of = value_of
        self._beat, self._note = beat, note
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._running: Future[int] | None = None
        self._closed = threading.Event()
        self.committed: deque[int] = deque()

    def start(self, snapshot: Snapshot) -> None:
        """Begin to write `snapshot`, after the save before it is done.

        Raises:
            OSError: The save before it failed; likewise CheckpointError and ConfigError.
        """
        self.wait()
        self._running = self._thread.submit(self._save, snapshot)

    @property
    def done(self) -> bool:
        """Whether nothing is being written any more."""
        return self._running is None or self._running.done()

    def poll(self) -> None:
        """Take note of a save that has ended; raises what it raised."""
        if self.done:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written; raises what the save raised."""
        if self._running is None:
            return
        while not wait([self._running], timeout=1).done:
            self._beat()
        running, self._running = self._running, None
        self.committed.append(running.result())

    def close(self) -> None:
        """End the thread; a save in progress is given up, and is then no checkpoint."""
        self._closed.set()
        self._thread.shutdown()

    def _save(self, snapshot: Snapshot) -> int:
        """Save, then let go of what is superfluous; returns the step."""
        check_finite(snapshot, last_good=self._last_good)
        self._save_stubbornly(snapshot)
        if self._rank == 0:
            try:
                self._run.drop_unfinished(self._attempt)
                run = self._run
                drop_old(
                    run.checkpoints,
                    run.attempts(),
                    keep=self._settings,
                    value_of=self._value_of,
                    remove=run.remove_checkpoint,
                    may_go_on=lambda: run.check_lease(self._attempt),
                )
            except OvertakenError:
                raise
            except (OSError, DataError) as error:  # the newer one is there; this comes again
                self._note(f"An old checkpoint could not be removed ({error}).")
        return snapshot.step

    def _last_good(self) -> str:
        """The name of the checkpoint before; asked for an error alone, for a store may be away."""
        before = living(self._run.checkpoints, self._run.attempts())
        return before[-1].name if before else ""

    def _save_stubbornly(self, snapshot: Snapshot) -> None:
        """Save, and again a few times if the disk refuses."""
        for retry in range(self._settings.retries):
            try:
                self._save_once(snapshot)
            except OSError as error:
                delay_s = RETRY_S * 2**retry
                self._note(
                    f"The checkpoint of step {snapshot.step} could not be written ({error}). "
                    f"Training goes on; it is tried again in {delay_s:.0f} s."
                )
                if self._closed.wait(delay_s):
                    raise
            else:
                return
        self._save_once(snapshot)

    def _save_once(self, snapshot: Snapshot) -> None:
        name = checkpoint_name(snapshot.step, self._attempt)
        folder = self._run.checkpoints
        if (folder / name).exists():
            return  # an earlier try was refused when all was done
        part, target = folder / f"{name}.part", folder / name
        drop_part(snapshot, part, rank=self._rank)  # half of an earlier try would take its room
        size_bytes = snapshot.size_bytes
        if self._rank == 0:  # the others write their memory at the same time
            missing = self._world_size - 1 - len(list(part.glob("rank-*.json")))
            size_bytes += missing * snapshot.memory_bytes
        check_room(folder, size_bytes=size_bytes)
        write_part(snapshot, part, rank=self._rank)
        ranks = {"world_size": self._world_size, "deadline_s": self._deadline_s}
        if isinstance(self._run, RemoteRun):
            put_part(self._run, part, target, rank=self._rank)
            if self._rank == 0:
                commit_there(self._run, part, target, **ranks, may_go_on=self._may_go_on)
            shutil.rmtree(part)
        elif self._rank == 0:
            commit(part, target, **ranks, may_go_on=self._may_go_on)

    def _may_go_on(self, *, now: bool = False) -> None:
        if self._closed.is_set():
            raise CheckpointError("The save was given up: its attempt has ended.")
        self._run.check_lease(self._attempt, now=now)
