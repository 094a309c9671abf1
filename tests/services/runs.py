"""A short training with a restart in it, recorded by a real MLflow server."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from mlflow.tracking import MlflowClient

from tests.tiny_runs import TOML

STEPS, FIRST = 24, 14
SECTIONS = f"""
[trainer]
steps = {STEPS}
threads = 1
[optimizer]
learning_rate = 1e-2
warmup_steps = 3
[evaluate]
every = 6
[checkpoint]
every = 6
[cluster]
launcher = "local"
workers = 1
"""


def longrow(*words: str, cwd: Path, environment: Mapping[str, str]) -> str:
    """What a command of ours, in a process of its own, wrote to standard output."""
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(here)} | dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train_with_a_restart(folder: Path, store: Path, environment: Mapping[str, str]) -> str:
    """Train `run` in two starts, evaluate it, and train `other`; gives the id of `run`."""
    config = folder / "run.toml"
    config.write_text(TOML.format(folder=folder / "runs", store=store) + SECTIONS)
    for steps in (FIRST, STEPS):
        longrow(
            "train",
            str(config),
            f"--set=trainer.steps={steps}",
            cwd=folder,
            environment=environment,
        )
    longrow("evaluate", "run", "--memory", "0,20", cwd=folder, environment=environment)
    words = ("--set=run.name=other", "--set=optimizer.learning_rate=5e-3")
    longrow("train", str(config), *words, cwd=folder, environment=environment)
    client = MlflowClient(environment["MLFLOW_TRACKING_URI"])
    experiment = client.get_experiment_by_name("longrow")
    assert experiment is not None
    (run,) = client.search_runs(
        [experiment.experiment_id], filter_string="tags.`longrow.run` = 'run'"
    )
    return run.info.run_id


def check_the_record(uri: str, run_id: str) -> None:
    """One point a step over both starts, checkpoints with scores, artifacts that can be read."""
    client = MlflowClient(uri)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert [one.step for one in client.get_metric_history(run_id, "train/loss")] == [
        *range(1, STEPS + 1)
    ]
    assert [one.step for one in client.get_metric_history(run_id, "eval/loss")] == [
        6,
        12,
        14,
        18,
        24,
    ]
    assert run.data.tags["longrow.changed.trainer.steps"] == f"{FIRST} -> {STEPS}"
    assert run.inputs is not None
    assert len(run.inputs.dataset_inputs) == 2
    models = client.search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id = '{run_id}'"
    )
    assert {int(model.params["step"]) for model in models} >= {6, 12, 14, 18, 24}
    scores = {int(model.params["step"]): model.metrics for model in models}
    assert scores[24]
    for name in ("config.toml", "pictures/loss.png", "tokenizer.model"):
        assert Path(client.download_artifacts(run_id, name)).stat().st_size > 0
