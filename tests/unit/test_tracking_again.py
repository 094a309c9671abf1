"""What a start that was killed left of a run in MLflow is filled in, found again, or ended."""

import errno
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from jobs.config import read_config
from jobs.track import Track, track
from pipeline.store import Store
from trainer.mlflow_run import TrackedRun, end_if_running
from trainer.run_folder import RunFolder
from trainer.tracking import Tracker


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def start(
    uri: str,
    folder: Path,
    *,
    key: str = "",
    warnings: list[str] | None = None,
    counts: Callable[[dict[str, Any]], bool] = lambda _line: True,
) -> Tracker:
    run = TrackedRun(
        experiment=folder.name,
        artifacts=(folder / "artifacts").as_uri(),
        name="run",
        params={"rows.rows": "4"},
        tags={"longrow.run": "run"},
        description="What it *is*.",
        key=key,
    )
    warn: Callable[[str], None] = (warnings if warnings is not None else []).append
    return Tracker.start(uri, run, run_id="", warn=warn, counts=counts)


def logged(uri: str, run_id: str) -> list[int]:
    return [one.step for one in MlflowClient(uri).get_metric_history(run_id, "train/loss")]


def test_what_a_start_that_was_killed_did_not_send_of_the_beginning_the_next_one_sends(
    uri: str, tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = RunFolder(tmp_path / "mine"), Store.open(str(tiny_store))
    folder.create()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    def begin(steps: int, store: Any) -> Track:
        sets = (f"trainer.steps={steps}", f"tracking.experiment={tmp_path.name}")
        config = read_config(base={"run": {"name": "mine"}}, sets=sets, environment={})
        return track(config, folder, store, changed={}, warn=pytest.fail)

    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "_send_all", lambda _self: True)  # it is killed before it sends
        run_id = begin(100, store).run_id
    for steps in (100, 200):  # what is there stays as it was begun
        begin(steps, store).close("stopped")
        monkeypatch.setattr(Store, "fingerprint", "f" * 64)  # it was still being built
    client = MlflowClient(uri)
    inputs = client.get_run(run_id).inputs
    assert inputs is not None
    assert sorted(one.dataset.name for one in inputs.dataset_inputs) == ["store", "store, held out"]
    assert not any(one.dataset.digest.startswith("fff") for one in inputs.dataset_inputs)
    kept = Path(client.download_artifacts(run_id, "config.toml", str(tmp_path)))
    assert tomllib.loads(kept.read_text())["trainer"]["steps"] == 100
    kept = Path(client.download_artifacts(run_id, "tokenizer.model", str(tmp_path)))
    assert kept.read_bytes() == store.tokenizer().model_bytes


@pytest.mark.parametrize("left", ["nothing of it", "its parameters"])
def test_a_run_whose_id_was_never_written_down_is_found_again(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """The process ended when MLflow had the run, and its folder did not yet know it."""
    with monkeypatch.context() as patch:
        if left == "nothing of it":  # nor had it come to say what it is
            patch.setattr("trainer.tracking.go_on", lambda *_: 1 / 0)
        first = start(uri, tmp_path, key="k1")
        first._overtaken = True  # a killed process sends nothing more
    other = start(uri, tmp_path, key="k2")
    second = start(uri, tmp_path, key="k1")
    assert second.run_id == first.run_id != other.run_id
    for tracker in (second, other):
        tracker.close("done")
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(tmp_path.name)
    assert experiment is not None
    for run in client.search_runs([experiment.experiment_id]):
        assert run.info.status == "FINISHED"
        assert run.data.params["rows.rows"] == "4"
        assert run.data.tags["mlflow.note.content"] == "What it *is*."


def test_a_run_whose_id_was_never_written_down_is_reaped_by_its_key(
    uri: str, tmp_path: Path
) -> None:
    left = start(uri, tmp_path, key="k3")
    left._overtaken = True
    assert not end_if_running(uri, "", key="none has it")
    assert end_if_running(uri, "", key="k3")
    assert MlflowClient(uri).get_run(left.run_id).info.status == "KILLED"
    assert not end_if_running(uri, "", key="k3")


@pytest.mark.parametrize("to_the_end", [False, True])
def test_a_folder_that_cannot_be_read_costs_the_record_no_line_and_not_its_end(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, to_the_end: bool
) -> None:
    monkeypatch.setattr("trainer.tracking.PERIOD_S", 0.01)
    looks, warnings = list[int](), list[str]()

    def counts(_line: dict[str, Any]) -> bool:
        looks.append(1)
        if to_the_end or len(looks) == 2:
            raise OSError(errno.ESTALE, "Stale file handle")
        return True

    tracker = start(uri, tmp_path, warnings=warnings, counts=counts)
    for number in range(1, 5):
        tracker.line({"kind": "step", "step": number, "train/loss": 1.0})
    until = time.monotonic() + 60
    while not warnings:
        assert time.monotonic() < until
        time.sleep(0.01)
    tracker.close("done")
    assert "The run's folder cannot be read ([Errno 116] Stale file handle)" in warnings[0]
    assert len(warnings) == 1
    assert logged(uri, tracker.run_id) == ([] if to_the_end else [1, 2, 3, 4])
    assert MlflowClient(uri).get_run(tracker.run_id).info.status == "FINISHED"
