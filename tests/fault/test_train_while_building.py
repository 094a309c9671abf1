"""`longrow train --build`: steps are taken before the store is there, and they are the same.

The builder is frozen in the middle, so that nothing hangs on who is faster.
"""

import json
import os
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

from pipeline.build import build_store
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer
from tests.ranks import ranks_here
from tests.tiny_runs import TOML
from trainer.checkpoint import newest_whole, read_state
from trainer.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
STEPS = 60
REST = f"""
[trainer]
steps = {STEPS}
threads = 1
[checkpoint]
every = 20
[evaluate]
every = 25
[tracking]
uri = "off"
[cluster]
workers = 2
"""
BAD = 30  # broken records at the end of the corpus
SETS = {
    "rows.shuffle": "none",
    "data.held_out": 0.1,
    "data.task_bytes": 300,
    "data.max_bad": "100%",
    "data.workers": 1,
}


class Box:
    """A folder of its own for a run, and a mark on every process that the run starts."""

    def __init__(self, home: Path, store: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="lrt-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))
        self.home, self.store = home, store or self.path / "store"
        self.mark = uuid.uuid4().hex
        (self.path / "t").mkdir()
        self.folder = RunFolder(self.path / "runs" / "run")
        self.config = self.path / "run.toml"
        self.config.write_text(TOML.format(folder=self.path / "runs", store=self.store) + REST)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        return subprocess.Popen(
            [sys.executable, "-m", *words, "--json"],
            cwd=ROOT,
            env=kept
            | {
                "LONGROW_TEST_MARK": self.mark,
                "TMPDIR": str(self.path / "t"),
                "HOME": str(self.path),
                "PYTHONPATH": str(ROOT),
                "TERM": "dumb",
            }
            | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def train(self, *words: str, **sets: object) -> subprocess.Popen[str]:
        told = SETS | {"data.tokenizer": str(self.home / "byte")} | sets
        options = [word for key, value in told.items() for word in ("--set", f"{key}={value}")]
        return self.start("jobs.train", str(self.config), *options, *words)

    def actors(self, kind: str) -> list[int]:
        """Processes of actors that carry the mark."""
        found: list[int] = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                marked = (
                    f"LONGROW_TEST_MARK={self.mark}".encode() in (entry / "environ").read_bytes()
                )
                if marked and (entry / "cmdline").read_bytes().startswith(f"ray::{kind}".encode()):
                    found.append(int(entry.name))
            except OSError:  # it has ended, or is not ours
                continue
        return found

    def freeze_the_builder(self, run: subprocess.Popen[str]) -> int:
        """Stop it when some tasks are committed and most are not; its process."""
        some = self.store / "building" / "00000004.json"
        self.wait_for(lambda: some.exists() or run.poll() is not None)
        (pid,) = self.actors("BuilderActor")
        os.kill(pid, signal.SIGSTOP)
        assert len(list(self.store.glob("building/0*.json"))) < 40
        return pid

    def steps(self) -> list[tuple[int, float]]:
        lines = self.folder.lines()
        return [(line["step"], line["train/loss"]) for line in lines if line["kind"] == "step"]

    def evaluations(self) -> list[tuple[int, float]]:
        lines = self.folder.lines()
        return [(line["step"], line["eval/loss"]) for line in lines if line["kind"] == "evaluation"]

    def wait_for(self, holds: Callable[[], bool], *, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"{len(self.steps())} steps"
            time.sleep(0.005)

    def remove(self) -> None:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if f"LONGROW_TEST_MARK={self.mark}".encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue
        shutil.rmtree(self.path)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of many tasks, a tokenizer, and the store of both."""
    home = tmp_path_factory.mktemp("home")
    lines = [json.dumps({"text": f"{i} memory " * (i * 7 % 23 + 1)}) for i in range(600)]
    (home / "corpus").mkdir()
    (home / "corpus/a.jsonl").write_text("\n".join(lines + ["broken"] * BAD))
    (home / "byte").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    build_store(
        [str(home / "corpus")],
        tokenizer=str(home / "byte"),
        out=str(home / "whole"),
        settings=BuildSettings(held_out=0.1, task_bytes=300, max_bad="100%"),
    )
    return home


@pytest.fixture
def box(home: Path) -> Iterator[Box]:
    box = Box(home)
    yield box
    box.remove()


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Iterator[tuple[list[tuple[int, float]], list[tuple[int, float]]]]:
    """Losses and evaluations of the run on the finished store, by two workers without Ray."""
    box = Box(home, store=home / "whole")
    processes = [
        box.start(
            "jobs.train",
            str(box.config),
            "--set",
            "rows.shuffle=none",
            "--set",
            "cluster.launcher=local",
            **rank,
        )
        for rank in ranks_here(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    yield box.steps(), box.evaluations()
    box.remove()


def test_steps_are_taken_before_the_store_is_there_and_kills_change_none(
    box: Box, undisturbed: tuple[list[tuple[int, float]], list[tuple[int, float]]]
) -> None:
    run = box.train("--build", str(box.home / "corpus"))
    frozen = box.freeze_the_builder(run)
    assert os.getpriority(os.PRIO_PROCESS, frozen) == 19  # behind the workers
    box.wait_for(lambda: len(box.steps()) >= 5 or run.poll() is not None)
    box.wait_for(lambda: len(box.actors("RowServerActor")) == 2)
    time.sleep(2)  # what it can take without more documents
    killed, stopped = box.actors("RowServerActor")  # that serve them: one of each rank
    os.kill(killed, signal.SIGKILL)
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(11)  # past the deadline of the one, and long enough to be told of
    taken = len(box.steps())
    assert 5 <= taken < STEPS, "it did not wait for documents that are not there"
    assert not (box.store / "manifest.json").exists()
    os.kill(frozen, signal.SIGKILL)
    said = run.communicate(timeout=120)[1]
    assert run.returncode == 0, said
    assert "is lost at step" in said  # and its rows were read by the worker
    assert "still being built" in said
    steps, evaluations = undisturbed
    assert box.steps() == steps
    assert box.evaluations()[-1] == evaluations[-1]
    assert [step for step, _ in evaluations] == [25, 50, STEPS]
    assert Store.open(str(box.store)).fingerprint == Store.open(str(box.home / "whole")).fingerprint
    assert not (box.store / "building").exists()


def test_the_same_command_goes_on_where_a_driver_was_killed(
    box: Box, undisturbed: tuple[list[tuple[int, float]], list[tuple[int, float]]]
) -> None:
    told = {"checkpoint.every": 2}
    run = box.train("--build", str(box.home / "corpus"), **told)
    frozen = box.freeze_the_builder(run)
    box.wait_for(lambda: len(box.steps()) >= 5 or run.poll() is not None)
    box.wait_for(lambda: any(box.folder.checkpoints.glob("step_*/manifest.json")))
    run.send_signal(signal.SIGKILL)
    run.communicate()
    os.kill(frozen, signal.SIGKILL)
    box.wait_for(lambda: not box.actors("BuilderActor"))
    taken, parts = len(box.steps()), len(list(box.store.glob("parts/*.json")))
    assert 5 <= taken < STEPS
    assert not (box.store / "manifest.json").exists()
    again = box.train("--build", str(box.home / "corpus"), **told)
    said = again.communicate(timeout=120)[1]
    assert again.returncode == 0, said
    first, second = box.folder.attempts()
    assert (first.start_step, second.start_step > 0) == (0, True)  # from a checkpoint
    assert 4 < parts < len(list(box.store.glob("parts/*.json")))
    steps, evaluations = undisturbed
    assert box.steps() == steps
    assert box.evaluations()[-1] == evaluations[-1]
    assert Store.open(str(box.store)).fingerprint == Store.open(str(box.home / "whole")).fingerprint


def test_a_build_that_fails_stops_the_training_with_a_checkpoint_to_go_on_from(
    box: Box, undisturbed: tuple[list[tuple[int, float]], list[tuple[int, float]]]
) -> None:
    run = box.train("--build", str(box.home / "corpus"), **{"data.max_bad": "0"})
    frozen = box.freeze_the_builder(run)
    box.wait_for(lambda: len(box.steps()) >= 5 or run.poll() is not None)
    os.kill(frozen, signal.SIGCONT)
    said = run.communicate(timeout=120)[1]
    assert run.returncode == 3, said
    assert f"{BAD} of 630 records are bad" in said
    checkpoint, passed = newest_whole(box.folder.checkpoints, box.folder.attempts())
    assert checkpoint is not None
    assert not passed
    state = read_state(checkpoint)
    assert state["step"] == len(box.steps()) >= 5
    assert state["parts"]["count"] > 4
    assert not (box.store / "manifest.json").exists()
    again = box.start("jobs.resume", str(box.folder.path), "--set", "data.max_bad=100%")
    said = again.communicate(timeout=120)[1]
    assert again.returncode == 0, said
    steps, evaluations = undisturbed
    assert box.steps() == steps
    assert box.evaluations()[-1] == evaluations[-1]
