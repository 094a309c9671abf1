"""One MLflow run across restarts: no step twice, none missing, never left RUNNING."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trainer.errors import ConfigError
from trainer.mlflow_run import TrackedRun
from trainer.tracking import CorpusInput, Tracker

PARAMS = {"rows.rows": "4", "data.inputs": "x" * 2_000}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def start(
    uri: str, folder: Path, *, run_id: str = "", warnings: list[str] | None = None
) -> Tracker:
    run = TrackedRun(
        experiment=folder.name,
        artifacts=(folder / "artifacts").as_uri(),
        name="run",
        params=PARAMS,
        tags={"longrow.run": "run"},
        description="What it *is*.",
    )
    warn: Callable[[str], None] = (warnings if warnings is not None else []).append
    return Tracker.start(uri, run, run_id=run_id, warn=warn)


def step(number: int, loss: float = 1.0) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": number,
        "attempt": 1,
        "train/loss": loss,
        "train/step_seconds": 0.1,
    }


def logged(uri: str, run_id: str, key: str = "train/loss") -> list[int]:
    return [metric.step for metric in MlflowClient(uri).get_metric_history(run_id, key)]


def test_a_restarted_run_is_one_run_with_each_step_once(uri: str, tmp_path: Path) -> None:
    first = start(uri, tmp_path)
    for number in (1, 2, 3, 5, 6, 7):
        first.line(step(number))
    first.line({"kind": "evaluation", "step": 4, "eval/loss": 2.0})
    first.close("stopped")
    assert MlflowClient(uri).get_run(first.run_id).info.status == "KILLED"
    second = start(uri, tmp_path, run_id=first.run_id)
    until = time.monotonic() + 60
    while MlflowClient(uri).get_run(first.run_id).info.status != "RUNNING":  # the thread says it
        assert time.monotonic() < until
        time.sleep(0.05)
    assert logged(uri, first.run_id) == [1, 2, 3, 5, 6, 7]  # 4 died with a worker, untold
    for number in range(1, 12):  # the driver hands in all of metrics.jsonl again, and goes on
        second.line(step(number))
    second.line({"kind": "evaluation", "step": 4, "eval/loss": 2.0})
    second.line({"kind": "evaluation", "step": 11, "eval/loss": 1.5})
    second.close("done")
    assert second.run_id == first.run_id
    assert sorted(logged(uri, first.run_id)) == list(range(1, 12))
    assert logged(uri, first.run_id, "eval/loss") == [4, 11]
    run = MlflowClient(uri).get_run(first.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["rows.rows"] == "4"
    assert len(run.data.params["data.inputs"]) == 500


def test_what_mlflow_does_not_take_is_kept_told_once_and_sent_later(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.tracking.PERIOD_S", 0.01)
    warnings: list[str] = []
    tracker = start(uri, tmp_path, warnings=warnings)
    refused: list[int] = []
    real = MlflowClient.log_batch

    def refuse(client: MlflowClient, *args: Any, **options: Any) -> None:
        if len(refused) < 5:
            refused.append(1)
            raise MlflowException("API request failed with error code 503 != 200")
        real(client, *args, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    for number in range(1, 2_000):  # more than one call takes
        tracker.line(step(number))
    tracker.close("done")
    assert len(refused) == 5
    assert len(warnings) == 1
    assert "error code 503" in warnings[0]
    assert logged(uri, tracker.run_id) == list(range(1, 2_000))


def test_datasets_texts_tables_files_and_checkpoints_are_there(uri: str, tmp_path: Path) -> None:
    tracker = start(uri, tmp_path)
    tracker.datasets(
        [
            CorpusInput(
                name="store", digest="d" * 64, source="stores/demo", split="train", profile={"n": 3}
            )
        ]
    )
    tracker.text("config.toml", "[run]\n")
    tracker.bytes("tokenizer.model", b"\0\1")
    picture = tmp_path / "loss.png"
    picture.write_bytes(b"png")
    tracker.file(picture, "pictures")
    tracker.table("samples/step_1.json", [{"prompt": "a", "text": "b"}])
    tracker.checkpoint(name="step_00000005-a0001", step=5, uri="/runs/x")
    tracker.close("failed")
    client = MlflowClient(uri)
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FAILED"
    names = {file.path for file in client.list_artifacts(tracker.run_id)}
    assert names == {"config.toml", "tokenizer.model", "pictures", "samples"}
    assert run.inputs is not None
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("store", "d" * 36)
    assert [(tag.key, tag.value) for tag in dataset.tags] == [("mlflow.data.context", "train")]
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert model.name == "step_00000005-a0001"
    assert model.tags["longrow.uri"] == "/runs/x"
    assert model.params == {"step": "5"}


def test_a_description_is_given_once_and_what_a_person_makes_of_it_stays(
    uri: str, tmp_path: Path
) -> None:
    client = MlflowClient(uri)
    first = start(uri, tmp_path)
    first.tag("longrow.ended", "x" * 9_000)
    first.close("stopped")
    run = client.get_run(first.run_id)
    assert run.data.tags["mlflow.note.content"] == "What it *is*."
    assert run.data.tags["longrow.ended"] == "x" * 4_000
    kind = client.get_experiment(run.info.experiment_id).tags["mlflow.experimentKind"]
    assert kind == "custom_model_development"  # else its pages are those of chat agents
    client.set_tag(first.run_id, "mlflow.note.content", "Mine.")
    start(uri, tmp_path, run_id=first.run_id).close("done")
    assert client.get_run(first.run_id).data.tags["mlflow.note.content"] == "Mine."


def test_a_checkpoint_knows_what_its_evaluation_found_whichever_came_first(
    uri: str, tmp_path: Path
) -> None:
    def evaluation(number: int, loss: float) -> dict[str, Any]:
        return {"kind": "evaluation", "step": number, "eval/loss": loss, "eval/perplexity": 9.0}

    def models() -> dict[str, dict[str, float]]:
        experiment = MlflowClient(uri).get_run(first.run_id).info.experiment_id
        return {
            model.name: {metric.key: metric.value for metric in model.metrics or []}
            for model in MlflowClient(uri).search_logged_models([experiment])
        }

    first = start(uri, tmp_path)
    first.line(evaluation(5, 2.0))
    first.checkpoint(name="step_00000005-a0001", step=5, uri="/runs/x/5")
    first.checkpoint(name="step_00000010-a0001", step=10, uri="/runs/x/10")
    first.close("stopped")
    assert models()["step_00000005-a0001"] == {"eval/loss": 2.0, "eval/perplexity": 9.0}
    assert models()["step_00000010-a0001"] == {}
    second = start(uri, tmp_path, run_id=first.run_id)
    for number in (5, 10):  # the driver tells of all that lies in the folder again
        second.checkpoint(name=f"step_{number:08d}-a0001", step=number, uri="/runs/x")
    second.line(evaluation(5, 2.0))
    second.line(evaluation(10, 1.0))
    second.close("done")
    assert {name: found["eval/loss"] for name, found in models().items()} == {
        "step_00000005-a0001": 2.0,
        "step_00000010-a0001": 1.0,
    }
    assert logged(uri, first.run_id, "eval/loss") == [5, 10]


def test_a_defect_of_mlflow_is_told_and_costs_only_itself(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    tracker = start(uri, tmp_path, warnings=warnings)

    def odd(*_: Any, **__: Any) -> None:
        raise KeyError("odd")

    monkeypatch.setattr("trainer.tracking.PERIOD_S", 0.01)
    monkeypatch.setattr(MlflowClient, "log_table", odd)
    tracker.table("samples/step_1.json", [{"prompt": "a"}])
    tracker.text("after.txt", "x")
    tracker.line(step(1))
    tracker.close("done")
    assert warnings[-1] == "MLflow did not record one thing (KeyError: 'odd')."
    assert [file.path for file in MlflowClient(uri).list_artifacts(tracker.run_id)] == ["after.txt"]
    assert MlflowClient(uri).get_run(tracker.run_id).info.status == "FINISHED"
    assert logged(uri, tracker.run_id) == [1]


def test_an_overtaken_run_keeps_the_status_that_another_process_sets(
    uri: str, tmp_path: Path
) -> None:
    tracker = start(uri, tmp_path)
    tracker.line(step(1))
    tracker.close("overtaken")  # what it had not sent is of no steps that count
    assert MlflowClient(uri).get_run(tracker.run_id).info.status == "RUNNING"
    assert logged(uri, tracker.run_id) == []


def test_a_start_that_is_overtaken_at_once_does_not_say_that_the_run_goes_on(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(uri, tmp_path)
    first.close("done")
    monkeypatch.setattr("trainer.tracking.PERIOD_S", 60.0)  # nothing is sent before it closes
    start(uri, tmp_path, run_id=first.run_id).close("overtaken")
    assert MlflowClient(uri).get_run(first.run_id).info.status == "FINISHED"


def test_a_run_that_mlflow_has_lost_begins_anew(uri: str, tmp_path: Path) -> None:
    tracker = start(uri, tmp_path, run_id="0" * 32)
    assert tracker.run_id != "0" * 32
    tracker.line(step(1))
    tracker.close("done")
    assert logged(uri, tracker.run_id) == [1]


def test_a_tracking_address_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MLflow at sqlite:////proc/nowhere.*tracking\.uri"):
        start("sqlite:////proc/nowhere/mlflow.db", tmp_path)


def test_a_line_that_two_processes_send_is_one_point_at_its_own_time(
    uri: str, tmp_path: Path
) -> None:
    """A driver that was frozen, or a request that is served late, says what was said before."""
    first = start(uri, tmp_path)
    late = start(uri, tmp_path, run_id=first.run_id)  # MLflow holds nothing yet: it leaves out none
    lines = [step(number) | {"time": 1_700_000_000_000 + number} for number in range(1, 5)]
    for tracker in (first, late):
        for line in lines:
            tracker.line(line)
        tracker.close("done")
    points = MlflowClient(uri).get_metric_history(first.run_id, "train/loss")
    assert [(one.step, one.timestamp) for one in points] == [
        (line["step"], line["time"]) for line in lines
    ]


def test_evaluations_with_other_memories_than_that_of_training_are_logged_once(
    uri: str, tmp_path: Path
) -> None:
    lines: list[dict[str, Any]] = [
        {"kind": "evaluation", "step": 4, "eval/loss": 2.0},
        {"kind": "evaluation", "step": 9, "eval/memory_0/loss": 3.0, "eval/memory_64/loss": 2.5},
    ]
    run_id = ""
    for _ in range(3):
        tracker = start(uri, tmp_path, run_id=run_id)
        run_id = tracker.run_id
        for line in lines:
            tracker.line(line)
        tracker.close("stopped")
    tracker = start(uri, tmp_path, run_id=run_id)
    # Step 4 was the last after all, and is scored with one more length.
    tracker.line({"kind": "evaluation", "step": 4, "eval/loss": 2.0, "eval/memory_0/loss": 4.0})
    tracker.close("done")
    assert logged(uri, run_id, "eval/loss") == [4]
    assert logged(uri, run_id, "eval/memory_64/loss") == [9]
    assert sorted(logged(uri, run_id, "eval/memory_0/loss")) == [4, 9]


def test_one_line_that_mlflow_refuses_for_good_holds_up_no_other(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.tracking.PERIOD_S", 0.01)
    warnings: list[str] = []
    tracker = start(uri, tmp_path, warnings=warnings)
    real = MlflowClient.log_batch

    def refuse(client: MlflowClient, run_id: str, metrics: Any = (), **options: Any) -> None:
        if any(one.step == 7 for one in metrics):
            raise MlflowException("INVALID_PARAMETER_VALUE: no such metric")
        real(client, run_id, metrics=metrics, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    for number in range(1, 100):
        tracker.line(step(number))
    tracker.close("done")
    assert sorted(logged(uri, tracker.run_id)) == [*range(1, 7), *range(8, 100)]
    assert "refuses what it is sent (INVALID_PARAMETER_VALUE" in warnings[0]
    assert "did not record one thing" in warnings[1]
    assert MlflowClient(uri).get_run(tracker.run_id).info.status == "FINISHED"
