"""MLflow holds exactly one point a step after ten restarts, whatever ended each attempt.

An attempt is killed when MLflow holds steps past its last checkpoint, which the next one takes, and
tells, again; or when steps up to it are still to be sent, which the next one does not take again.
"""

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.forks import Forks
from tests.tiny_runs import TOML
from trainer.checkpoint import checkpoints, step_of
from trainer.run_folder import RunFolder

RESTARTS = 10
PATIENCE_S = 120.0
REST = """
[trainer]
steps = {steps}
threads = 1
[evaluate]
every = 15
[checkpoint]
every = 40
[tracking]
uri = "sqlite:///{folder}/mlflow.db"
[cluster]
launcher = "local"
"""
# Of a step that is taken twice the first is in MLflow, the second in metrics.jsonl.
BY_THE_CLOCK = (
    "train/step_seconds",
    "train/tokens_per_second",
    "train/model_flop",
    "data/wait_seconds",
    "system/",
)


class Restarted:
    """A run that is started again and again, and what MLflow's file has of it."""

    def __init__(self, path: Path, store: Path, forks: Forks) -> None:
        self.path, self._store, self._forks = path, store, forks
        self.folder = RunFolder(path / "run")
        self.pid = 0  # of the last start

    def start(self, *, steps: int) -> None:
        config = self.path / "run.toml"
        config.write_text((TOML + REST).format(folder=self.path, store=self._store, steps=steps))
        self.pid = self._forks.start([str(config)], self.path / "log.txt")

    def end(self, number: int = 0) -> int:
        if number:
            os.kill(self.pid, number)
        return self._forks.end()

    def committed(self) -> int:
        return max((step_of(path) for path in checkpoints(self.folder.checkpoints)), default=0)

    def done(self) -> int:
        return max((line["step"] for line in self.folder.lines()), default=0)

    def recorded(self) -> int | None:
        """The last step that MLflow has; None if its file is locked just now, or not there yet."""
        if not (self.path / "mlflow.db").exists():
            return None
        try:
            with closing(sqlite3.connect(self.path / "mlflow.db", timeout=0)) as database:
                (step,) = database.execute(
                    "select max(step) from metrics where key = 'train/loss'"
                ).fetchone()
        except sqlite3.OperationalError:
            return None
        return step or 0

    def is_ahead(self, *, of: int, recorded: bool) -> bool:
        """Whether it is past checkpoint `of`, and its record ahead of its checkpoints, or behind.

        Past a checkpoint stands what the next attempt takes again, before it what nobody does.
        """
        committed, told = self.committed(), self.recorded()
        if committed <= of or told is None:
            return False
        return committed < told if recorded else told < committed

    def freeze_when(self, holds: Callable[[], bool]) -> None:
        """Stop the process, as SIGSTOP does, at a moment when it holds."""
        until = time.monotonic() + PATIENCE_S
        while True:
            if holds():
                os.kill(self.pid, signal.SIGSTOP)
                if holds():
                    return
                os.kill(self.pid, signal.SIGCONT)
            assert time.monotonic() < until, self.story()
            time.sleep(0.03)

    def story(self) -> str:
        log = (self.path / "log.txt").read_text(errors="replace")
        return f"step {self.done()}, at {self.committed()}, told {self.recorded()}\n{log[-3000:]}"


@pytest.fixture
def run(tmp_path: Path, tiny_store: Path) -> Iterator[Restarted]:
    with Forks() as forks:
        yield Restarted(tmp_path, tiny_store, forks)


@pytest.mark.timeout(400)
def test_mlflow_holds_exactly_one_point_a_step_after_ten_restarts(run: Restarted) -> None:
    from mlflow.tracking import MlflowClient

    ends: list[tuple[signal.Signals, bool]] = [
        *[(signal.SIGKILL, True), (signal.SIGKILL, False)] * 4,
        *[(signal.SIGTERM, True), (signal.SIGTERM, False)],
    ]
    random.Random(5).shuffle(ends)
    for number, ahead in ends:
        before = run.committed()
        run.start(steps=1_000_000)
        run.freeze_when(partial(run.is_ahead, of=before, recorded=ahead))
        if number == signal.SIGKILL:
            assert run.end(signal.SIGKILL) == -signal.SIGKILL
            assert run.is_ahead(of=before, recorded=ahead)
        else:
            os.kill(run.pid, signal.SIGCONT)
            assert run.end(signal.SIGTERM) == 128 + signal.SIGTERM, run.story()
            assert run.committed() == run.done() > before
    steps = run.committed() + 20
    run.start(steps=steps)
    assert run.end() == 0, run.story()
    assert len(run.folder.attempts()) == RESTARTS + 1

    client = MlflowClient(tracking_uri=f"sqlite:///{run.path}/mlflow.db")
    experiments = [one.experiment_id for one in client.search_experiments()]
    (record,) = client.search_runs(experiments)
    assert record.info.status == "FINISHED"
    assert record.data.params["trainer.steps"] == "1000000"  # once, as it was begun
    assert "longrow.changed.trainer.steps" in record.data.tags
    lines = list(run.folder.lines())
    of_steps = [line["step"] for line in lines if line["kind"] == "step"]
    assert of_steps == list(range(1, steps + 1))
    keys = {
        key for line in lines for key, value in line.items() if "/" in key and value is not None
    }
    assert keys == set(record.data.metrics)
    assert {"train/loss", "eval/loss", "train/step_seconds"} < keys
    for key in sorted(keys):
        wanted = {line["step"]: line[key] for line in lines if line.get(key) is not None}
        found = client.get_metric_history(record.info.run_id, key)
        assert sorted(one.step for one in found) == sorted(wanted), key
        if not key.startswith(BY_THE_CLOCK):
            assert {one.step: one.value for one in found} == wanted, key
    models = client.search_logged_models(experiments, max_results=1000)
    names = [model.name for model in models]
    assert len(names) == len(set(names)) >= RESTARTS
