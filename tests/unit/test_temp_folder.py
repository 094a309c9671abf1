"""What a killed process left in the temp folder goes at the next start, and nothing else does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer import temp_folder
from trainer.temp_folder import OWNER, is_dead, owner_of, sweep

KILLED = """
import os, signal
from trainer.temp_folder import temp_folder
with temp_folder() as path:
    print(path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def killed(temp: Path) -> Path:
    """The folder of a process that was ended by SIGKILL."""
    environment = os.environ | {"TMPDIR": str(temp)}
    told = subprocess.run(
        [sys.executable, "-c", KILLED], env=environment, capture_output=True, text=True, check=False
    )
    return Path(told.stdout.strip())


def test_a_folder_is_there_within_its_block_and_gone_after_it() -> None:
    with temp_folder.temp_folder() as path:
        assert Path(path).is_dir()
    assert not Path(path).exists()


def test_the_next_start_sweeps_what_a_killed_process_left(temp: Path) -> None:
    left = killed(temp)
    assert left.is_dir()
    with temp_folder.temp_folder() as mine:
        assert [path.name for path in temp.iterdir()] == [Path(mine).name]


@pytest.mark.parametrize(
    "change",
    [
        {"boot": "another machine's"},
        {"namespace": "another container's"},
        {"more": 1},
        None,
    ],
)
def test_what_another_owns_or_nobody_claims_is_never_swept(
    temp: Path, change: dict[str, Any] | None
) -> None:
    left = killed(temp)
    owner = json.loads((left / OWNER).read_text())
    (left / OWNER).write_text(json.dumps(owner | change) if change else "")
    (temp / "lr-somebodys").mkdir()
    (temp / "lr-file").write_text("")
    with temp_folder.temp_folder() as living:
        sweep(temp)
        assert {path.name for path in temp.iterdir()} == {
            *(left.name, "lr-somebodys", "lr-file", Path(living).name)
        }


def test_a_process_id_that_was_given_out_again_is_another_process() -> None:
    here = owner_of(os.getpid())
    assert here is not None
    assert not is_dead(here)
    assert is_dead(here | {"started": 1})
    assert not is_dead(None)
