"""The breaking machine: a run with all that stands around it, and what a breaker looks at.

breaks.py breaks it, test_chaos.py draws what and when. The run has no last step until it is told
one: however fast the machine is, there is always something left to break.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ranks import free_port, ranks_here
from tests.tiny_runs import TOML
from trainer.checkpoint import checkpoints, step_of
from trainer.retention import PINNED
from trainer.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
EVERY = 10  # steps between two checkpoints
SCORED = 7  # steps between two evaluations
PATIENCE_S = 240.0  # of a machine that others use too
ROOM = "64m"  # of the disk that the runs lie on, where we may mount one
REST = """
[trainer]
steps = {steps}
threads = 1
average = 0.99
spike_factor = 50.0
[optimizer]
learning_rate = 3e-4
warmup_steps = 20
final_ratio = 1.0
[evaluate]
every = {scored}
minutes = 0.1
patience = 1000000
[checkpoint]
every = {every}
keep_every = 40
keep_best = 1
[tracking]
uri = "{uri}"
[cluster]
launcher = "{launcher}"
workers = {workers}
hang_timeout_s = {hang_timeout_s}
start_timeout_s = 60
"""


class Machine:
    """A run, its processes, its disk and its record.

    Attributes:
        path: All of it lies below.
        folder: The run's folder.
        draw: Where everything random comes from.
        workers: World size of the next start.
        processes: Those that were started by us and not yet waited for.
        mlflow: MLflow's server, where the run has one.
        mounted: Whether the run lies on a small disk of its own.
        early: Whether it is broken as it starts: it may not have its handlers yet, or its peers.
        pinned: Checkpoints that must be there at the end.
    """

    def __init__(
        self,
        store: Path,
        *,
        seed: int,
        database: Path | None = None,
        launcher: str = "local",
        workers: int = 2,
        steps: int = 1_000_000,
    ) -> None:
        """Prepare a run on `store`; `database` is copied to be its MLflow record, if it has one."""
        self.path = Path(
            tempfile.mkdtemp(prefix="lrc-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
        )
        self.draw = random.Random(seed)
        self.launcher, self.workers, self.steps = launcher, workers, steps
        self.processes: list[subprocess.Popen[bytes]] = []
        self.mlflow: MlflowServer | None = None
        self.early = False
        self.pinned: list[Path] = []
        self._mark = uuid.uuid4().hex
        self._store = store
        self._starts = 0
        self.database = self.path / "mlflow.db"
        if database:
            shutil.copy(database, self.database)
        for name in ("t", "home", "runs"):
            (self.path / name).mkdir()
        self.mounted = _mount(self.path / "runs")
        self.folder = RunFolder(self.path / "runs" / "run")

    def start(self) -> None:
        """The command of the run, in as many processes as its launcher wants."""
        config = self.path / "run.toml"
        config.write_text(
            (TOML + REST).format(
                folder=self.path / "runs",
                store=self._store,
                steps=self.steps,
                every=EVERY,
                scored=SCORED,
                uri=self._uri(),
                launcher=self.launcher,
                workers=self.workers,
                hang_timeout_s=20,
            )
        )
        self._starts += 1
        ranks = ranks_here(self.workers) if self.launcher == "local" else [{}]
        for rank, told in enumerate(ranks):
            with self.log(rank).open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "jobs.train", str(config)],
                    cwd=ROOT,
                    env=self.environment | told,
                    stdout=log,
                    stderr=log,
                )
            self.processes.append(process)

    def _uri(self) -> str:
        if self.mlflow:
            return self.mlflow.uri
        return f"sqlite:///{self.database}" if self.database.exists() else "off"

    @property
    def environment(self) -> dict[str, str]:
        """Of all processes around the run: a mark, and homes of their own."""
        kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        return kept | {
            "OMP_NUM_THREADS": "1",
            "LONGROW_TEST_MARK": self._mark,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "TMPDIR": str(self.path / "t"),
            "HOME": str(self.path / "home"),
            "PYTHONPATH": str(ROOT),
        }

    def done(self) -> int:
        """The last step in metrics.jsonl."""
        try:
            with self.folder.metrics.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4_000))
                lines = file.read().split(b"\n")[1:-1]  # neither end need be whole
        except FileNotFoundError:
            return 0
        return max((json.loads(line)["step"] for line in lines), default=0)

    def steps_told(self) -> list[tuple[int, float]]:
        """Each step with its loss, as metrics.jsonl has them."""
        lines = self.folder.lines()
        return [(line["step"], line["train/loss"]) for line in lines if line["kind"] == "step"]

    def scores_told(self) -> list[tuple[int, float]]:
        """Each step that is a multiple of SCORED, with what its evaluation found.

        Others were put where they are by the clock, or by the end of a run.
        """
        return [
            (line["step"], line["eval/loss"])
            for line in self.folder.lines()
            if line["kind"] == "evaluation" and line["step"] % SCORED == 0
        ]

    def pin(self) -> None:
        """Have the newest checkpoint kept for good."""
        path = checkpoints(self.folder.checkpoints)[-1]
        (path / PINNED).touch()
        self.pinned.append(path)

    def committed(self) -> int:
        """Step of the newest committed checkpoint; 0 before the first."""
        return max((step_of(path) for path in checkpoints(self.folder.checkpoints)), default=0)

    def log(self, rank: int = 0) -> Path:
        """What a rank, or the driver, has said since its last start."""
        return self.path / f"log-{self._starts:03d}-{rank}.txt"

    def said(self, words: str, *, after: int = 0) -> bool:
        """Whether rank 0 or the driver has said these words since its last start.

        Args:
            words: What to look for.
            after: Bytes of its log that were there before, and do not count.
        """
        return words.encode() in self.log().read_bytes()[after:]

    def wait(self, holds: Callable[[], bool], *, alive: bool = True) -> None:
        """Wait until it holds, with the run alive all the while."""
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, self.story()
            assert not alive or not self.ended(), self.story()
            time.sleep(0.01)

    def ended(self) -> bool:
        """Whether a process of the run has ended."""
        return any(process.poll() is not None for process in self.processes)

    def end(self, codes: set[int]) -> set[int]:
        """Wait until the run's processes have ended, with none but these codes; gives theirs."""
        found: set[int] = set()
        for process in self.processes:
            try:
                found.add(process.wait(timeout=PATIENCE_S))
            except subprocess.TimeoutExpired:
                pytest.fail(f"It does not end.\n{self.story()}")
        assert found <= codes, self.story()
        self.processes = []
        return found

    def to_the_end(self) -> None:
        """Let the run, which has stopped, come to its end a little further on."""
        self.steps = min(self.steps, self.committed() + EVERY)
        self.start()
        self.end({0})
        if self.said("MLflow did not take everything"):
            self.start()
            self.end({0})

    def of(self, name: str) -> list[int]:
        """Processes that carry our mark and have `name` in their command line."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                ours = self._mark.encode() in (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has ended, or is not ours
                continue
            if ours and command and name in command:
                found.append(int(entry.name))
        return sorted(found)

    def left_over(self) -> tuple[dict[int, str], list[str], list[str]]:
        """Processes, and files in the temp and home folders, when MLflow's server is gone."""
        if self.mlflow:
            self.mlflow.kill()
        end = time.monotonic() + 30
        while (pids := self.of("")) and time.monotonic() < end:
            time.sleep(0.2)
        return (
            {pid: _command(pid) for pid in pids},
            sorted(
                path.name
                for path in (self.path / "t").iterdir()
                if not path.name.startswith("longrow-error-")  # a person was told where it is
            ),
            sorted(path.name for path in (self.path / "home").iterdir()),
        )

    def story(self) -> str:
        """Where the run stands, and what it said last."""
        codes = [process.poll() for process in self.processes]
        logs = [
            f"-- {path.name}\n{path.read_text(errors='replace')[-20_000:]}"
            for path in sorted(self.path.glob(f"log-{self._starts:03d}-*.txt"))
        ]
        return "\n".join([f"codes {codes}, step {self.done()}, at {self.committed()}", *logs])

    def remove(self) -> None:
        """Leave no process and no file."""
        for process in self.processes:
            process.kill()
            process.wait()
        for pid in self.of(""):
            send(pid, signal.SIGKILL)
        if self.mounted:
            subprocess.run(["umount", "-l", self.path / "runs"], check=True)
        shutil.rmtree(self.path, ignore_errors=True)


class MlflowServer:
    """MLflow's own server on loopback, which comes and goes."""

    def __init__(self, machine: Machine) -> None:
        """Start it, and wait until it answers."""
        self._machine, self._port = machine, free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self.start()
        machine.wait(self.answers, alive=False)

    def start(self) -> None:
        """Start it; it takes a while to answer."""
        words = ["server", "--backend-store-uri", f"sqlite:///{self._machine.database}"]
        words += ["--artifacts-destination", str(self._machine.path / "artifacts")]
        words += ["--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        with (self._machine.path / "mlflow.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *words],
                env=self._machine.environment | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                stdout=log,
                stderr=log,
            )

    def answers(self) -> bool:
        """Whether somebody listens."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def pids(self) -> list[int]:
        """Of the server and its worker."""
        return [pid for pid in self._machine.of("mlflow") if "jobs.train" not in _command(pid)]

    def kill(self) -> None:
        """End it in the middle of what it does."""
        for pid in self.pids():
            send(pid, signal.SIGKILL)
        self._process.wait()


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "(ended)"


def _mount(path: Path) -> bool:
    """Put a small disk of its own under `path`; False where we may not."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(path)]
    try:
        return subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
