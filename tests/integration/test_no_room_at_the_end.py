"""A run that is done is done, though the disk takes no picture of it."""

import resource
from pathlib import Path
from typing import Any

import pytest

from jobs import drive
from jobs.ending import keep_all
from tests.command import code_of
from tests.tiny_runs import TOML

REST = """
[trainer]
steps = 4
threads = 1
[tracking]
uri = "off"
[cluster]
launcher = "local"
"""
KEPT = ("summary.json", "loss.png", "loss_by_offset.png", "samples")


def test_what_the_disk_refuses_at_the_end_is_named_and_written_by_a_resume(
    tiny_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "run.toml").write_text((TOML + REST).format(folder=tmp_path, store=tiny_store))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def without_room(*args: Any, **options: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # bytes of any one file
        try:
            keep_all(*args, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with monkeypatch.context() as full:
        full.setattr(drive, "keep_all", without_room)
        assert code_of("train", str(tmp_path / "run.toml")) == 0
    said = capsys.readouterr().err
    for name in KEPT:
        assert f"{tmp_path}/run has no new {name}: [Errno 27]" in said
    found = {path.name for path in (tmp_path / "run").iterdir()}
    assert not found & set(KEPT[:3])
    assert not any(name.startswith(".longrow-") for name in found)
    assert code_of("resume", str(tmp_path / "run")) == 0
    assert "has no new" not in capsys.readouterr().err
    assert set(KEPT) <= {path.name for path in (tmp_path / "run").iterdir()}
