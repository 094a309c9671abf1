"""A server of MLflow that is away, refuses, hangs or comes back costs the record nothing."""

import os
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from werkzeug.serving import BaseWSGIServer, make_server

from trainer.mlflow_run import AWAY, TrackedRun
from trainer.tracking import TRIES, Tracker

Answer = Callable[..., Any]  # WSGI's start_response
TROUBLES = ["away", "403", "500", "503", "hangs"]


class Server:
    """MLflow's own server in a thread, behind a door that does what a test wants."""

    def __init__(self, database: Path) -> None:
        from mlflow.server import app

        self._app = app
        self.trouble = ""
        self.database = database
        self._well = threading.Event()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._server: BaseWSGIServer | None = None
        self.open()

    def open(self) -> None:
        self._server = make_server("127.0.0.1", self.port, self._answer, threaded=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def be(self, trouble: str) -> None:
        """Be well (""), away, slow, or answer with a code."""
        if "away" in (trouble, self.trouble):
            (self.close if trouble == "away" else self.open)()
        self.trouble = trouble
        if trouble:
            self._well.clear()
        else:
            self._well.set()
        # Short where nothing will come, long where a busy machine only takes its time.
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "1" if trouble == "hangs" else "60"

    def _answer(self, environ: dict[str, Any], answer: Answer) -> Any:
        if self.trouble == "hangs":
            self._well.wait(60)
        if self.trouble.isdigit():
            answer(f"{self.trouble} Trouble", [("Content-Type", "text/plain")])
            return [b"not now"]
        return self._app(environ, answer)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("mlflow")
    database = folder / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{database}")
        patch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", str(folder / "artifacts"))
        patch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
        patch.setattr("trainer.tracking.PERIOD_S", 0.05)
        door = Server(database)
        MlflowClient(door.uri).search_experiments()  # makes the tables, which takes a while
        yield door
        door.close()


@pytest.fixture
def server(opened: Server) -> Iterator[Server]:
    yield opened
    opened.be("")


def start(server: Server, warnings: list[str], *, run_id: str = "") -> Tracker:
    run = TrackedRun(experiment="away", artifacts=None, name="run", params={}, tags={"a": "b"})
    return Tracker.start(server.uri, run, run_id=run_id, warn=warnings.append)


def step(number: int) -> dict[str, Any]:
    return {"kind": "step", "step": number, "train/loss": 1.0 / number, "train/step_seconds": 0.1}


def told(warnings: list[str], count: int = 1) -> None:
    """Wait until something was said."""
    deadline = time.monotonic() + 60
    while len(warnings) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def logged(server: Server, run_id: str) -> list[int]:
    client = MlflowClient(f"sqlite:///{server.database}")
    return [metric.step for metric in client.get_metric_history(run_id, "train/loss")]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_comes_during_trouble_is_there_afterwards_once(server: Server, trouble: str) -> None:
    warnings: list[str] = []
    tracker = start(server, warnings)
    for number in range(1, 50):
        tracker.line(step(number))
    server.be(trouble)
    for number in range(50, 100):
        tracker.line(step(number))
    tracker.text(f"{trouble}.txt", "kept too")
    told(warnings)
    server.be("")
    tracker.close("done")
    assert len(warnings) == 1
    assert "what is missing there is kept and sent later" in warnings[0]
    assert sorted(logged(server, tracker.run_id)) == list(range(1, 100))
    run = MlflowClient(server.uri).get_run(tracker.run_id)
    assert run.info.status == "FINISHED"


@pytest.mark.parametrize("trouble", ["away", "403", "500"])
def test_a_file_is_not_given_up_while_nothing_is_taken(server: Server, trouble: str) -> None:
    warnings: list[str] = []
    tracker = start(server, warnings)
    server.be(trouble)
    tracker.text("config.toml", "x")
    deadline = time.monotonic() + 60
    while tracker._tries <= TRIES:  # more refusals than a defect is granted
        assert time.monotonic() < deadline
        time.sleep(0.02)
    server.be("")
    tracker.close("done")
    assert len(warnings) == 1
    files = MlflowClient(server.uri).list_artifacts(tracker.run_id)
    assert [file.path for file in files] == ["config.toml"]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_run_that_goes_on_does_not_wait_for_its_record(server: Server, trouble: str) -> None:
    warnings: list[str] = []
    first = start(server, warnings)
    for number in range(1, 10):
        first.line(step(number))
    first.close("stopped")
    server.be(trouble)
    second = start(server, warnings, run_id=first.run_id)
    assert second.run_id == first.run_id
    assert "Training begins all the same" in warnings[0]
    for number in range(1, 20):  # all of metrics.jsonl, and on
        second.line(step(number))
    second.checkpoint(name="step_00000010-a0001", step=10, uri="x")
    server.be("")
    second.close("done")
    assert sorted(logged(server, first.run_id)) == list(range(1, 20))
    assert MlflowClient(server.uri).get_run(first.run_id).info.status == "FINISHED"


def test_a_server_that_hangs_holds_neither_the_start_nor_an_end_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    first = start(server, warnings)
    first.close("stopped")
    server.be("hangs")
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "60"  # longer than anybody waits
    monkeypatch.setattr("trainer.tracking.ANSWER_S", 0.2)
    second = start(server, warnings, run_id=first.run_id)
    assert "it has not answered in 0 s. Training begins all the same" in warnings[0]
    second.line(step(1))
    second.close("stopped", wait_s=0.3)
    assert "MLflow did not take everything in 0 s" in warnings[1]
    server.be("")


@pytest.mark.usefixtures("server")
def test_a_locked_database_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri, warnings = f"sqlite:///{tmp_path}/mlflow.db", list[str]()
    run = TrackedRun(
        experiment="locked", artifacts=tmp_path.as_uri(), name="run", params={}, tags={}
    )
    tracker = Tracker.start(uri, run, run_id="", warn=warnings.append)
    lock = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    tracker.checkpoint(name="step_00000001-a0001", step=1, uri="x")
    for number in range(1, 30):
        tracker.line(step(number))
    told(warnings)
    lock.execute("ROLLBACK")
    lock.close()
    tracker.close("done")
    client = MlflowClient(uri)
    assert [one.step for one in client.get_metric_history(tracker.run_id, "train/loss")] == list(
        range(1, 30)
    )
    assert len(warnings) == 1
    assert AWAY.search(warnings[0])  # so that it is no defect of what was sent
    assert "Traceback" not in capsys.readouterr().err  # MLflow's own, of what a sentence tells
    found = client.get_run(tracker.run_id)
    assert len(client.search_logged_models([found.info.experiment_id])) == 1


@pytest.mark.usefixtures("server")
def test_a_run_goes_on_though_a_sleeping_process_holds_the_database(tmp_path: Path) -> None:
    first, warnings = tmp_path / "first.db", list[str]()
    run = TrackedRun(
        experiment="asleep", artifacts=tmp_path.as_uri(), name="run", params={}, tags={}
    )
    begun = Tracker.start(f"sqlite:///{first}", run, run_id="", warn=warnings.append)
    begun.close("stopped")
    again = tmp_path / "again.db"  # as another process sees it: MLflow has not opened it yet
    shutil.copy(first, again)
    lock = sqlite3.connect(again, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    tracker = Tracker.start(
        f"sqlite:///{again}",
        run,
        run_id=begun.run_id,
        warn=warnings.append,
        counts=lambda line: line["step"] != 2,  # another attempt took it again
    )
    assert "Training begins all the same" in warnings[0]
    for number in range(1, 4):
        tracker.line(step(number))
    lock.execute("ROLLBACK")
    lock.close()
    tracker.close("done")
    history = MlflowClient(f"sqlite:///{again}").get_metric_history(begun.run_id, "train/loss")
    assert sorted(one.step for one in history) == [1, 3]
