"""What MLflow has no more is said so, and nothing is made in its place."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from trainer import mlflow_run
from trainer.errors import ConfigError
from trainer.mlflow_run import add_to_run, end_if_running

ACTS = [end_if_running, partial(add_to_run, files=(), tables={})]


@pytest.mark.parametrize("act", ACTS)
def test_a_file_that_is_gone_is_named_and_not_made_anew(
    tmp_path: Path, act: Callable[[str, str], object]
) -> None:
    file = tmp_path / "away" / "mlflow.db"
    with pytest.raises(ConfigError, match=r"mlflow\.db is not there any more.*begins another"):
        act(f"sqlite:///{file}", "1f")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_mlflow_does_not_know_is_not_a_server_to_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_run, "known_run", lambda _client, _run_id: "")
    file = tmp_path / "mlflow.db"
    file.touch()
    for act in ACTS:
        with pytest.raises(ConfigError, match="has lost what it had of this run") as caught:
            act(f"sqlite:///{file}", "1f")
        assert "Start its server" not in str(caught.value)


def test_a_file_that_is_no_database_is_a_sentence_and_no_fault_of_what_was_sent(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mlflow.db"
    file.write_bytes(b"garbage" * 1000)
    for act in ACTS:
        with pytest.raises(ConfigError, match=r"file is not a database") as caught:
            act(f"sqlite:///{file}", "1f")
        assert mlflow_run.AWAY.search(str(caught.value.__cause__))
        assert "\n" not in str(caught.value)
