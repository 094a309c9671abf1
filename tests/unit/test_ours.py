"""What we hold goes to servers that we named, and to none that a stranger's folder names."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobs.find import Found
from jobs.keep import keep
from jobs.mlflow_login import NAMES, OTHERS, TOKEN
from tests.command import code_of
from trainer import mlflow_run, tracking
from trainer.errors import ConfigError
from trainer.run_folder import RunFolder

SECRET = "hunter2"  # noqa: S105


class Stranger(BaseHTTPRequestHandler):
    """Keeps what it is sent, and answers nothing of use."""

    def do_GET(self) -> None:
        cast("Any", self.server).told.append(str(self.headers))
        self.send_response(400)
        self.end_headers()

    do_POST = do_PATCH = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        pass


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """Its address, and the heads of all calls that it got."""
    for name in (*NAMES, TOKEN, *OTHERS, "MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    monkeypatch.chdir(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    told = cast("Any", server).told = list[str]()
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield SimpleNamespace(uri=f"http://127.0.0.1:{server.server_port}", told=told)
    finally:
        server.shutdown()
        server.server_close()


def a_run(record: dict[str, str] | None = None, **config: dict[str, Any]) -> RunFolder:
    """A run that ended without a word, in runs/."""
    run = RunFolder(Path("runs/one").absolute())
    run.create()
    run.write_json("config.json", {"trainer": {"steps": 3}, **config})
    if record:
        run.write_json("mlflow.json", record)
    return run


def keep_of(run: RunFolder) -> None:
    found = Found(name="one", path=run.path, loaded=cast("Any", None), folder=run)
    keep(found, "a", facts={}, rows=[{"a": 1}], draw=lambda path: path.touch())


def test_the_mlflow_that_a_runs_folder_names_gets_no_token_of_ours(
    stranger: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = a_run({"uri": stranger.uri, "run_id": "7"})
    assert code_of("runs", "reap") == 1
    keep_of(run)
    said = capsys.readouterr().err
    assert said.count(f"one/mlflow.json has MLflow at {stranger.uri}, which nothing here") == 2
    assert said.count(f"set MLFLOW_TRACKING_URI={stranger.uri}; nothing was sent") == 2
    assert stranger.told == []
    assert (run.evaluations / "a.json").exists()  # its numbers are kept all the same
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{stranger.uri}/")
    assert code_of("runs", "reap") == 1
    keep_of(run)
    assert [SECRET in head for head in stranger.told] == [True, True]


def test_who_holds_nothing_may_be_recorded_where_the_folder_says(
    stranger: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run({"uri": stranger.uri, "run_id": "7"})
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    assert code_of("runs", "reap") == 1
    assert len(stranger.told) == 1
    Path(".mlflow").mkdir()
    Path(".mlflow/credentials").write_text(f"[mlflow]\nmlflow_tracking_password = {SECRET}\n")
    assert code_of("runs", "reap") == 1
    assert len(stranger.told) == 1


@pytest.mark.parametrize("known", [{"uri": "postgresql+psycopg2://x@db/x", "run_id": "7"}, {}])
def test_a_strangers_database_and_a_damaged_record_are_not_asked(
    known: dict[str, str], stranger: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_given: object, **_named: object) -> bool:
        raise AssertionError

    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    monkeypatch.setattr(mlflow_run, "end_if_running", never)
    a_run().write_json("mlflow.json", known)
    assert code_of("runs", "reap") == 1
    assert stranger.told == []


def test_a_resume_takes_no_server_from_the_runs_own_config(
    stranger: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = stranger.uri.removeprefix("http://")
    a_run(tracking={"uri": stranger.uri}, cluster={"address": address})
    assert code_of("resume", "one") == 2
    assert f"one/config.json has MLflow at {stranger.uri}" in capsys.readouterr().err
    ours = ("--set", "tracking.uri=off")
    assert code_of("resume", "one", *ours) == 2
    assert f"one/config.json has the Ray at {address}" in capsys.readouterr().err
    ways = [("--set", "cluster.address="), ("--set", "cluster.launcher=local")]
    monkeypatch.setenv("LONGROW__TRACKING__URI", stranger.uri)
    for way in ways:
        assert code_of("resume", "one", *way) == 2
        assert "data.store is empty" in capsys.readouterr().err  # it came as far as that
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert code_of("resume", "one") == 2
    assert "data.store is empty" in capsys.readouterr().err
    assert stranger.told == []


@pytest.mark.parametrize("server", ["http://evil/api", "https://evil/api"])
def test_a_file_of_mlflow_beside_a_run_names_no_server_for_its_artifacts(
    server: str, stranger: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlflow.db").touch()
    info = SimpleNamespace(artifact_uri=server, experiment_id="1", run_id="7")
    info = SimpleNamespace(info=info)
    client = SimpleNamespace(
        tracking_uri=f"sqlite:///{tmp_path}/mlflow.db",
        get_run=lambda _run_id: info,
        get_experiment_by_name=lambda _name: SimpleNamespace(experiment_id="1", tags={}),
        set_experiment_tag=lambda *_given: None,
        create_run=lambda *_given, **_named: SimpleNamespace(info=SimpleNamespace(run_id="7")),
        log_batch=lambda *_given, **_named: None,
        update_run=lambda *_given, **_named: None,
    )
    monkeypatch.setattr(mlflow_run, "client_of", lambda _uri: client)
    monkeypatch.setattr(tracking, "client_of", lambda _uri: client)
    with pytest.raises(ConfigError, match="a server is taken from the environment alone"):
        mlflow_run.add_to_run(client.tracking_uri, "7", files=[Path("a.png")], tables={})
    run = mlflow_run.TrackedRun(experiment="e", artifacts=None, name="n", params={}, tags={})
    with pytest.raises(ConfigError, match="a server is taken from the environment alone"):
        tracking.Tracker.start(client.tracking_uri, run, run_id="", warn=print)
    assert json.dumps(stranger.told) == "[]"
