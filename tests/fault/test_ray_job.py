"""A run as a job on a Ray cluster: `ray job stop` leaves a checkpoint of the step it came in."""

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import free_port
from tests.fault.test_run_death import ROOT, Box

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
GRACE_S = "120"  # Ray's own is 3 s, too short for the last step and its checkpoint


class Cluster:
    """A Ray with its dashboard on loopback, under the mark and in the temp folder of a box."""

    def __init__(self, box: Box) -> None:
        self.environment = box.environment | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._dashboard = free_port()
        words = ["start", "--head", "--block", "--num-cpus", "2", "--port", str(free_port())]
        words += ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(self._dashboard)]
        words += ["--temp-dir", str(box.path / "r"), "--object-store-memory", "200000000"]
        words += ["--ray-client-server-port", str(free_port())]
        self._log = (box.path / "head.txt").open("w")
        self._head = subprocess.Popen(
            [*RAY, *words],
            env=self.environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def job(self, *words: str) -> subprocess.CompletedProcess[str]:
        address = f"http://127.0.0.1:{self._dashboard}"
        verb, *rest = words
        command = [*RAY, "job", verb, "--address", address, *rest]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=120
        )

    def end(self) -> None:
        self._head.send_signal(signal.SIGTERM)
        self._head.wait(timeout=60)
        self._log.close()


@pytest.fixture
def box(tiny_store: Path) -> Iterator[Box]:
    box = Box(tiny_store)
    yield box
    box.remove()


def test_ray_job_stop_saves_the_step_it_came_in_and_mlflow_is_told(box: Box) -> None:
    cluster = Cluster(box)
    try:
        environment = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": GRACE_S, "PYTHONPATH": str(ROOT)}}
        words = ["--runtime-env-json", json.dumps(environment), "--no-wait", "--submission-id"]
        entry = ["--", *box.command(tracked=True), "--set", "cluster.address=auto"]
        entry += ["--set", "trainer.steps=100000"]
        submit = ("submit", *words, "a", *entry)
        box.wait_for(lambda: cluster.job(*submit).returncode == 0)  # once the dashboard is there
        box.wait_for(lambda: len(box.steps()) >= 30)
        assert cluster.job("stop", "a").returncode == 0
        last = box.steps()[-1][0]
        assert "was stopped" in cluster.job("status", "a").stdout
        said = cluster.job("logs", "a").stdout
        assert f"Stopped after step {last} (SIGTERM was received)" in said
        newest = max(box.folder.checkpoints.iterdir())
        assert newest.name == f"step_{last:08d}-a0001"
        assert _recorded(box) == ("KILLED", list(range(1, last + 1)))
    finally:
        cluster.end()


def _recorded(box: Box) -> tuple[str, list[int]]:
    """The run's status in MLflow, and the steps it has a loss for."""
    from mlflow.tracking import MlflowClient

    known = box.folder.read_json("mlflow.json") or {}
    client = MlflowClient(tracking_uri=known["uri"])
    history = client.get_metric_history(known["run_id"], "train/loss")
    return client.get_run(known["run_id"]).info.status, [metric.step for metric in history]
