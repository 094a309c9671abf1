"""The breaking machine: a run that is broken in ways a seed draws, round after round.

A round starts the run by its own command, lets it get further than it ever was, and breaks
something while it trains or saves. A break returns when the run has ended, or goes on by itself.
"""

import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit

from trainer.checkpoint import checkpoints, step_of
from trainer.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
STEPS = 600
EVERY = 10
PATIENCE_S = 300.0  # of a machine that others use too
SMALL_FILE = 200_000  # bytes: lines and manifests are smaller, weights and moments are larger
TOML = """
[run]
name = "run"
folder = "{folder}"
[data]
store = "{store}"
[rows]
rows = 4
segment = 16
[model]
layers = 2
width = 64
heads = 2
head_width = 32
inner_width = 128
memory = 20
dropout = 0.1
[trainer]
steps = {steps}
threads = 1
[optimizer]
learning_rate = 3e-4
warmup_steps = 20
[evaluate]
every = 150
[checkpoint]
every = {every}
[tracking]
uri = "{uri}"
[cluster]
launcher = "{launcher}"
workers = {workers}
hang_timeout_s = {hang_timeout_s}
"""


class Machine:
    """A run, what stands around it, and the ways to break it.

    Attributes:
        folder: The run's folder.
        told: What was done to it, for the message of a test that fails.
    """

    def __init__(
        self,
        store: Path,
        *,
        seed: int,
        launcher: str = "local",
        workers: int = 2,
        steps: int = STEPS,
    ) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="lrc-"))
        self.folder = RunFolder(self.path / "runs" / "run")
        self.told: list[str] = []
        self.draw = random.Random(seed)
        self.workers = workers
        self._steps = steps
        self._mark = uuid.uuid4().hex
        self._store, self._launcher = store, launcher
        self._starts = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        (self.path / "t").mkdir()

    @property
    def database(self) -> Path:
        """Where MLflow records the run."""
        return self.path / "mlflow.db"

    def round(self, name: str, act: Callable[[], None]) -> None:
        """Get further than ever before, then break what `act` breaks."""
        before = self.committed()
        if not self._processes:
            self.start()
        goal = max(before, self.done()) + self.draw.randint(1, 2 * EVERY)
        self.wait(lambda: self.committed() > before and self.done() >= goal)
        if at_a_save := self.draw.random() < 0.5:  # while files are being written
            self.wait(lambda: any(self.folder.checkpoints.glob("*.part")))
        self.told.append(
            f"round {len(self.told) + 1}: {name} at step {self.done()}"
            f"{' in a save' if at_a_save else ''}, W = {self.workers}; "
            f"committed {before} -> {self.committed()}"
        )
        act()
        assert self.committed() > before, self.story()

    def to_the_end(self) -> None:
        """Let the run come to its end."""
        if not self._processes:
            self.start()
        self.end({0})

    def start(self) -> None:
        """The command of the run, in as many processes as its launcher wants."""
        config = self.path / "run.toml"
        config.write_text(
            TOML.format(
                folder=self.path / "runs",
                store=self._store,
                steps=self._steps,
                every=EVERY,
                uri=f"sqlite:///{self.database}",
                launcher=self._launcher,
                workers=self.workers,
                hang_timeout_s=30,  # of a start too: ranks that wait for rank 0 and its record
            )
        )
        self._starts += 1
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        environment = kept | {
            "OMP_NUM_THREADS": "1",
            "LONGROW_TEST_MARK": self._mark,
            "TMPDIR": str(self.path / "t"),
            "HOME": str(self.path),
            "PYTHONPATH": str(ROOT),
        }
        ranks = range(1 if self._launcher == "ray" else self.workers)
        for rank in ranks:
            several = {
                "WORLD_SIZE": str(self.workers),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "RANK": str(rank),
            }
            with self._log(rank).open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "jobs.train", str(config)],
                    cwd=ROOT,
                    env=environment | (several if self._launcher == "local" else {}),
                    stdout=log,
                    stderr=log,
                )
            self._processes.append(process)

    # Breaks that end the run: the same command again goes on with it.

    def kill_a_worker(self) -> None:
        """SIGKILL to one; the others notice and end."""
        victim = self.draw.choice(self._processes)
        victim.kill()
        self.end({1, -signal.SIGKILL})

    def freeze_a_worker(self) -> None:
        """SIGSTOP to one; the others wait no longer than cluster.hang_timeout_s."""
        victim = self._processes[-1]
        victim.send_signal(signal.SIGSTOP)
        others = [process for process in self._processes if process is not victim]
        self.wait(lambda: all(process.poll() is not None for process in others), alive=False)
        victim.kill()
        self.end({1, -signal.SIGKILL})

    def kill_the_driver(self) -> None:
        """SIGKILL to all of it at once, as when a machine loses its power."""
        for process in self._processes:
            process.kill()
        self.end({-signal.SIGKILL})
        self._sweep()

    def stop(self) -> None:
        """SIGINT or SIGTERM to the driver: a checkpoint of the last step, and the code for it."""
        number = self.draw.choice([signal.SIGINT, signal.SIGTERM])
        self._processes[0].send_signal(number)
        self.end({128 + number, 130})  # ranks that had no signal of their own say 130
        assert self.committed() == self.done(), self.story()

    def flip_a_bit(self) -> None:
        """Stop, then flip one bit somewhere in the newest checkpoint."""
        self.stop()
        newest = checkpoints(self.folder.checkpoints)[-1]
        file = self.draw.choice(sorted(newest.iterdir()))
        data = bytearray(file.read_bytes())
        place = self.draw.randrange(len(data))
        data[place] ^= 1 << self.draw.randrange(8)
        file.write_bytes(data)
        self.start()
        self.wait(lambda: self.said("passed over and left in place"))
        self.told.append(f"  {newest.name}/{file.name}: a bit of byte {place}; passed over")

    # Breaks that the run lives through.

    def kill_a_ray_worker(self) -> None:
        """SIGKILL to a process of Ray that holds a rank; a new attempt comes by itself."""
        self._kill_and_see("RayTrainWorker", signal.SIGKILL)

    def kill_the_server(self) -> None:
        """SIGKILL to an actor that serves batches; steps go on."""
        before = self.done()
        victims = self._of_ray("RowServerActor")
        assert victims, self.story()
        os.kill(self.draw.choice(victims), signal.SIGKILL)
        self.wait(lambda: self.done() >= before + EVERY)

    def lock_the_record(self) -> None:
        """Nobody can write to MLflow's database for a while; steps go on."""
        before = self.done()
        with closing(sqlite3.connect(self.database, timeout=30, isolation_level=None)) as held:
            held.execute("BEGIN EXCLUSIVE")
            self.wait(lambda: self.done() >= before + EVERY)
            held.execute("ROLLBACK")

    def fill_the_disk(self) -> None:
        """No file of rank 0 may grow beyond a size that weights need; then it may again."""
        before, pid = self.committed(), self._processes[0].pid
        prlimit(pid, RLIMIT_FSIZE, (SMALL_FILE, RLIM_INFINITY))
        self.wait(lambda: self.said("could not be written"))
        prlimit(pid, RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))
        self.wait(lambda: self.committed() > before)

    # What a round looks at.

    def done(self) -> int:
        """Steps in metrics.jsonl."""
        return max((step for step, _ in self.steps()), default=0)

    def steps(self) -> list[tuple[int, float]]:
        """Each step with its loss, as metrics.jsonl has them."""
        lines = self.folder.lines()
        return [(line["step"], line["train/loss"]) for line in lines if line["kind"] == "step"]

    def committed(self) -> int:
        """Step of the newest committed checkpoint; 0 before the first."""
        return max((step_of(path) for path in checkpoints(self.folder.checkpoints)), default=0)

    def said(self, words: str) -> bool:
        """Whether rank 0 or the driver has said these words since its last start."""
        return words in self._log(0).read_text(errors="replace")

    def wait(self, holds: Callable[[], bool], *, alive: bool = True) -> None:
        """Wait until it holds, with the run alive all the while."""
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, self.story()
            if alive:
                assert all(one.poll() is None for one in self._processes), self.story()
            time.sleep(0.004)

    def end(self, codes: set[int]) -> None:
        """Wait until the run's processes have ended, each with one of these codes."""
        for process in self._processes:
            assert process.wait(timeout=PATIENCE_S) in codes, self.story()
        self._processes = []

    def story(self) -> str:
        """All that was done to the run, and what it said last."""
        codes = [process.poll() for process in self._processes]
        logs = [
            f"-- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.path.glob(f"log-{self._starts:03d}-*.txt"))
        ]
        return "\n".join([*self.told, f"codes {codes}, step {self.done()}", *logs])

    def remove(self) -> None:
        """Leave no process and no file."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._sweep()
        shutil.rmtree(self.path, ignore_errors=True)

    def _log(self, rank: int) -> Path:
        return self.path / f"log-{self._starts:03d}-{rank}.txt"

    def _kill_and_see(self, name: str, number: int) -> None:
        attempts = len(self.folder.attempts())
        victims = self._of_ray(name)
        assert victims, self.story()
        os.kill(self.draw.choice(victims), number)
        self.wait(lambda: len(self.folder.attempts()) > attempts)

    def _of_ray(self, name: str) -> Sequence[int]:
        """Processes that carry our mark and this name."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                ours = self._mark.encode() in (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().decode()
            except OSError:  # it has ended, or is not ours
                continue
            if ours and name in command and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        return sorted(found)

    def _sweep(self) -> None:
        for pid in self._of_ray(""):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
