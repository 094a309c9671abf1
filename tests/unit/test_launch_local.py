"""How a local rank ends: with its own error, whatever comes after it."""

from pathlib import Path
from typing import NoReturn

import pytest

from tests.tiny_runs import tiny_plan
from trainer import launch_local as launching


def test_a_group_that_cannot_be_left_hides_no_first_error(
    tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> NoReturn:
        raise ValueError("the first error")

    def cannot_be_left() -> NoReturn:
        raise RuntimeError("a peer is gone")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(launching, "_meet", lambda *_: None)
    monkeypatch.setattr(launching, "_train_in_group", fails)
    monkeypatch.setattr(launching.dist, "destroy_process_group", cannot_be_left)
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=1)
    with pytest.raises(ValueError, match="the first error") as caught:
        launching.launch_local(plan, on_news=lambda _: None, stop_reason=lambda: "")
    (note,) = caught.value.__notes__
    assert "a peer is gone" in note
