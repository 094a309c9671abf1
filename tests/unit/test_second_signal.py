"""A second signal ends a run at once, though its save goes on; MLflow hears that it was stopped."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from tests.command import code_of
from tests.tiny_runs import TOML
from trainer import saver
from trainer.checkpoint import checkpoints
from trainer.run_folder import RunFolder

REST = """
[trainer]
steps = 1_000_000
threads = 1
[checkpoint]
every = 1_000_000
[tracking]
uri = "{uri}"
[cluster]
launcher = "local"
"""


@pytest.fixture
def handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_a_run_while_its_checkpoint_is_still_being_written(
    tiny_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    code: int,
) -> None:
    folder, uri = RunFolder(tmp_path / "runs" / "run"), f"sqlite:///{tmp_path}/mlflow.db"
    config = tmp_path / "run.toml"
    config.write_text((TOML + REST).format(folder=tmp_path / "runs", store=tiny_store, uri=uri))
    saves, let_go, failed = threading.Event(), threading.Event(), list[str]()
    real = saver.write_part

    def write_part(*args: Any, **options: Any) -> None:
        saves.set()
        let_go.wait(60)  # a slow disk
        real(*args, **options)

    def person() -> None:
        until = time.monotonic() + 60
        while not any(line["step"] >= 3 for line in folder.lines()):
            if time.monotonic() > until:
                failed.append("no step was taken")
                break
            time.sleep(0.05)
        os.kill(os.getpid(), number)
        if not saves.wait(60):
            failed.append("the first signal began no save")
        os.kill(os.getpid(), number)

    monkeypatch.setattr(saver, "write_part", write_part)
    monkeypatch.setattr("trainer.signals.ECHO_S", 0.0)  # the second one is meant
    presses = threading.Thread(target=person, daemon=True)
    presses.start()
    try:
        assert code_of("train", str(config)) == code
        assert not let_go.is_set()
        assert checkpoints(folder.checkpoints) == []
    finally:
        let_go.set()
        for thread in threading.enumerate():
            if thread.name in ("train", "mlflow"):
                thread.join(60)
    assert failed == []
    known = folder.read_json("mlflow.json") or {}
    assert MlflowClient(uri).get_run(known["run_id"]).info.status == "KILLED"
    assert folder.last_beat() is None
