"""What `longrow runs` says of a folder of runs, and whom it ends in MLflow."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.command import code_of
from trainer.errors import ConfigError
from trainer.run_folder import RunFolder


def a_run(
    folder: Path, name: str, *, steps: int, beat_s_ago: float | None, end: str = "", of: int = 3
) -> RunFolder:
    run = RunFolder(folder / name)
    run.create()
    run.write_json("config.json", {"trainer": {"steps": 3}})
    lines = [json.dumps({"kind": "step", "step": step + 1}) + "\n" for step in range(steps)]
    run.metrics.write_text("".join(lines), encoding="utf-8")
    if end:
        run.write_json("summary.json", {"status": end, "steps": steps, "of": of})
    if beat_s_ago is not None:
        run.beat()
        then = time.time() - beat_s_ago
        os.utime(run.path / "heartbeat", (then, then))
    return run


def test_a_run_is_running_while_it_shows_life_and_no_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, "alive", steps=1, beat_s_ago=5)
    a_run(tmp_path, "dead", steps=1, beat_s_ago=700)
    a_run(tmp_path, "done", steps=3, beat_s_ago=None, end="done")
    a_run(tmp_path, "ended by patience", steps=2, beat_s_ago=None, end="done")
    a_run(tmp_path, "killed in its last save", steps=3, beat_s_ago=None)
    a_run(tmp_path, "killed as it went on", steps=2, beat_s_ago=None, end="done", of=2)
    a_run(tmp_path, "stopped", steps=2, beat_s_ago=None, end="stopped")
    a_run(tmp_path, "damaged", steps=2, beat_s_ago=None).write_json("config.json", {})
    assert code_of("runs", "list", "--folder", str(tmp_path), "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert {one["name"]: one["status"] for one in told} == {
        "alive": "running",
        "damaged": "damaged",
        "dead": "stopped",
        "done": "done",
        "ended by patience": "done",
        "killed as it went on": "stopped",
        "killed in its last save": "stopped",
        "stopped": "stopped",
    }


def test_only_runs_without_life_that_mlflow_calls_running_are_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer import mlflow_run

    asked: list[tuple[str, str]] = []

    def end(_uri: str, run_id: str, *, key: str, status: str) -> bool:
        run_id = run_id or key
        asked.append((run_id, status))
        if run_id == "away":
            raise ConfigError("MLflow is away")
        return run_id != "told"

    monkeypatch.setattr(mlflow_run, "end_if_running", end)
    for name, beat, how in (
        ("alive", 5.0, ""),
        ("away", None, ""),
        ("broken", None, ""),
        ("dead", 700.0, ""),
        ("done", None, "done"),
        ("told", None, "done"),
    ):
        run = a_run(tmp_path, name, steps=2, beat_s_ago=beat, end=how)
        told = {"run_id": "", "key": name} if name == "dead" else {"run_id": name}
        run.write_json("mlflow.json", {"uri": "sqlite:///x"} | told)
    for damaged in ("{}", "[", '{"run_id": 1, "uri": 2}'):
        (tmp_path / "broken" / "mlflow.json").write_text(damaged)
        assert code_of("runs", "reap", "--folder", str(tmp_path)) == 1
        assert "or remove it, and the run begins another record" in capsys.readouterr().err
    asked.clear()
    assert code_of("runs", "reap", "--folder", str(tmp_path), "--json") == 1
    assert asked == [
        ("away", "KILLED"),
        ("dead", "KILLED"),
        ("done", "FINISHED"),
        ("told", "FINISHED"),
    ]
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["reaped"], told["failed"]) == (["dead", "done"], ["away", "broken"])
