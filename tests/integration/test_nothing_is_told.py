"""What opens servers to us stands in no file of a run, not in MLflow, and in nothing we say."""

import secrets
from pathlib import Path

import pytest

from tests.command import code_of
from tests.tiny_runs import TOML

NAMES = (
    "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "HF_TOKEN", "PGPASSWORD",
)  # fmt: skip
REST = """
[trainer]
steps = 2
[tracking]
uri = "sqlite:///{box}/mlflow.db"
[cluster]
launcher = "local"
"""


def test_no_secret_of_the_environment_is_in_a_run_its_record_or_what_it_says(
    tiny_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    held = {name: secrets.token_hex(16) for name in NAMES}
    for name, value in held.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "run.toml"
    text = (TOML + REST).format(folder=tmp_path / "runs", store=tiny_store, box=tmp_path)
    config.write_text(text, encoding="utf-8")
    run = str(tmp_path / "runs" / "run")
    assert code_of("train", str(config), "--json", "--debug") == 0
    assert code_of("evaluate", run, "--memory", "4", "--json") == 0  # it adds to the record
    assert code_of("show", run, "--json") == 0
    said = "".join(capfd.readouterr()).encode()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"mlflow.db", "config.json", "metrics.jsonl"} <= {path.name for path in files}
    told = {"what it says": said} | {str(path): path.read_bytes() for path in files}
    found = [
        (name, where)
        for where, data in told.items()
        for name, value in held.items()
        if value.encode() in data
    ]
    assert found == []
