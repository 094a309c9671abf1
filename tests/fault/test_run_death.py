"""A run on Ray: its worker is killed, Ctrl-C is pressed, its terminal gives SIGTERM."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ranks import ranks_here
from tests.tiny_runs import TOML
from trainer.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
STEPS = 300
REST = """
[trainer]
steps = {steps}
threads = 1
[checkpoint]
every = 20
[tracking]
uri = "{uri}"
[cluster]
workers = 2
retries = 1
launcher = "{launcher}"
"""


class Box:
    """A folder of its own for a run, and a mark on every process that the run starts."""

    def __init__(self, store: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="lrt-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))
        self.store = store
        self.mark = uuid.uuid4().hex
        self.temp = self.path / "t"
        self.temp.mkdir()
        self.home = self.path / "home"
        self.home.mkdir()
        self.folder = RunFolder(self.path / "runs" / "run")

    def start(self) -> subprocess.Popen[str]:
        """The run as a process; what it says to a person can be read."""
        return subprocess.Popen(
            self.command(),
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, *, launcher: str = "ray", tracked: bool = False) -> list[str]:
        uri = f"sqlite:///{self.path}/mlflow.db" if tracked else "off"
        config = self.path / "run.toml"
        config.write_text(
            (TOML + REST).format(
                folder=self.path / "runs",
                store=self.store,
                steps=STEPS,
                uri=uri,
                launcher=launcher,
            )
        )
        return [sys.executable, "-m", "jobs.train", str(config), "--json"]

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        return kept | {
            "LONGROW_TEST_MARK": self.mark,
            "TMPDIR": str(self.temp),
            "HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "TERM": "dumb",
        }

    def processes(self) -> dict[int, str]:
        """Process ids that carry the mark, with their command lines."""
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has ended, or is not ours
                continue
            if f"LONGROW_TEST_MARK={self.mark}".encode() in environment and command:
                found[int(entry.name)] = command
        return found

    def steps(self) -> list[tuple[int, float]]:
        lines = self.folder.lines()
        return [(line["step"], line["train/loss"]) for line in lines if line["kind"] == "step"]

    def wait_for(self, holds: Callable[[], bool], *, seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"{len(self.steps())} steps; {self.processes()}"
            time.sleep(0.05)

    def left_over(self) -> tuple[dict[int, str], list[str], list[str]]:
        """Processes, files in the temp folder and files in the home folder."""
        end = time.monotonic() + 10
        while self.processes() and time.monotonic() < end:
            time.sleep(0.2)
        return (
            self.processes(),
            sorted(path.name for path in self.temp.iterdir()),
            sorted(path.name for path in self.home.iterdir()),
        )

    def remove(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.path)


@pytest.fixture
def box(tiny_store: Path) -> Iterator[Box]:
    box = Box(tiny_store)
    yield box
    box.remove()


@pytest.fixture(scope="module")
def undisturbed(tiny_store: Path) -> Iterator[list[tuple[int, float]]]:
    """The losses of the run that nothing happened to, by two workers without Ray."""
    box = Box(tiny_store)
    command = box.command(launcher="local")
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=box.environment | rank,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in ranks_here(2)
    ]
    said = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    yield box.steps()
    box.remove()


def test_a_killed_worker_costs_a_restart_and_not_one_bit(
    box: Box, undisturbed: list[tuple[int, float]]
) -> None:
    run = subprocess.Popen(
        box.command(tracked=True),
        cwd=ROOT,
        env=box.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    box.wait_for(lambda: len(box.steps()) >= 50)
    workers = [pid for pid, name in box.processes().items() if "RayTrainWorker" in name]
    assert len(workers) == 2
    os.kill(workers[-1], signal.SIGKILL)
    told, errors = run.communicate(timeout=200)
    assert run.returncode == 0, errors
    assert "left no word: its process was killed from outside" in errors
    assert box.steps() == undisturbed
    attempts = box.folder.attempts()
    assert len(attempts) == 2
    assert attempts[1].start_step >= 20  # it went on, and did not begin again
    summary = json.loads(told.splitlines()[-1])
    assert summary["resumed_from_step"] == attempts[1].start_step
    assert _logged_steps(box, summary["mlflow_run_id"]) == [step for step, _ in undisturbed]
    assert box.left_over() == ({}, [], [])


def test_a_killed_controller_costs_a_restart_and_not_one_bit(
    box: Box, undisturbed: list[tuple[int, float]]
) -> None:
    run = box.start()
    box.wait_for(lambda: len(box.steps()) >= 50)
    (controller,) = (pid for pid, name in box.processes().items() if "TrainController" in name)
    os.kill(controller, signal.SIGKILL)
    _, errors = run.communicate(timeout=200)
    assert run.returncode == 0, errors
    assert box.steps() == undisturbed
    assert [attempt.number for attempt in box.folder.attempts()] == [1, 2]
    assert box.folder.attempts()[1].start_step >= 20
    assert box.left_over() == ({}, [], [])


def _logged_steps(box: Box, run_id: str) -> list[int]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{box.path}/mlflow.db")
    assert client.get_run(run_id).info.status == "FINISHED"
    return [metric.step for metric in client.get_metric_history(run_id, "train/loss")]


def test_ctrl_c_saves_the_step_it_came_in_and_the_same_command_goes_on(
    box: Box, undisturbed: list[tuple[int, float]]
) -> None:
    pid, terminal = pty.fork()
    if pid == 0:  # the child: its terminal sends SIGINT to all that belongs to it, Ray too
        os.chdir(ROOT)
        command = box.command()
        os.execve(command[0], command, box.environment)  # noqa: S606
    said = bytearray()

    def seen() -> bool:
        while select.select([terminal], [], [], 0)[0]:
            try:
                said.extend(os.read(terminal, 65_536))
            except OSError:  # the other end is closed
                break
        return len(box.steps()) >= 50

    box.wait_for(seen)
    os.write(terminal, b"\x03")
    ended: list[int] = []

    def has_ended() -> bool:
        seen()
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(ended)

    box.wait_for(has_ended)
    os.close(terminal)
    assert ended == [130], said.decode()
    stop = re.search(rb"Stopped after step (\d+) \(SIGINT was received\)", bytes(said))
    assert stop is not None, said.decode()
    assert box.left_over() == ({}, [], [])
    newest = max(box.folder.checkpoints.iterdir())
    assert newest.name == f"step_{int(stop[1]):08d}-a0001"
    done = subprocess.run(
        box.command(), cwd=ROOT, env=box.environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert box.folder.attempts()[-1].start_step == int(stop[1])
    assert box.steps() == undisturbed


def test_sigterm_stops_with_a_checkpoint_and_its_own_code(box: Box) -> None:
    run = box.start()
    box.wait_for(lambda: len(box.steps()) >= 5)
    run.send_signal(signal.SIGTERM)
    _, errors = run.communicate(timeout=90)
    assert run.returncode == 143, errors
    last = box.steps()[-1][0]
    assert f"step_{last:08d}" in max(box.folder.checkpoints.iterdir()).name
    assert box.left_over() == ({}, [], [])


def test_workers_that_fail_each_time_are_given_up_with_what_failed_first(box: Box) -> None:
    box.folder.create()
    for attempt in range(1, 6):  # where the save at step 20 wants to make a folder
        (box.folder.checkpoints / f"step_00000020-a{attempt:04d}.part").write_text("")
    run = subprocess.run(
        box.command(),
        cwd=ROOT,
        env=box.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.returncode == 1, run.stderr
    assert len(box.folder.attempts()) == 2
    assert "Traceback" not in run.stderr
    last = run.stderr.strip().splitlines()[-1]
    assert "started 2 times with no checkpoint between (cluster.retries = 1)" in last
    kept = sorted((box.folder.path / "errors").iterdir())
    assert "FileExistsError" in last or "NotADirectoryError" in last
    (named,) = (path for path in kept if path.name in last)
    assert "step_00000020-a0001.part" in named.read_text()
    assert box.left_over() == ({}, [], [])
