"""A pod of workers stays until none of them runs (infra/wait_for_workers.py), and no longer."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "infra" / "wait_for_workers.py"


@pytest.fixture
def main() -> Callable[..., int]:
    spec = importlib.util.spec_from_file_location("wait_for_workers", FILE)
    assert spec
    assert spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def processes(folder: Path, **commands: bytes) -> Path:
    for number, command in commands.items():
        (folder / number.removeprefix("p")).mkdir()
        (folder / number.removeprefix("p") / "cmdline").write_bytes(command)
    (folder / "9").mkdir()  # it has just ended
    return folder


def test_it_waits_for_the_last_worker(
    main: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = processes(
        tmp_path, p1=b"ray\0start\0--block", p7=b"ray::_RayTrainWorker__execute", p8=b"ray::IDLE"
    )
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            (folder / "7" / "cmdline").write_bytes(b"")

    monkeypatch.setattr("time.sleep", sleep)
    assert main(folder, wait_s=60.0) == 0
    assert len(waited) == 3
    assert capsys.readouterr().out == "longrow: no worker runs.\n"


def test_it_gives_up_when_the_time_is_up(
    main: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = processes(tmp_path, p7=b"ray::RayTrainWorker")
    assert main(folder, wait_s=0.0) == 1
    assert capsys.readouterr().out == "longrow: 1 workers still run.\n"
