"""An attempt begins beside one that still lives, on a full disk, and with much to look through."""

import errno
import json
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import thread_group
from tests.thread_group import of_ranks
from tests.tiny_runs import tiny_plan
from trainer import start
from trainer.board import Board, LocalReporter, Verdict
from trainer.checkpoint import checkpoint_name, checkpoints
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.run_folder import Attempt, RunFolder


@pytest.fixture
def plan(tiny_store: Path, tmp_path: Path) -> TrainPlan:
    return tiny_plan(tiny_store, tmp_path / "run", steps=10)


def run(plan: TrainPlan) -> Verdict:
    group = Group(device=torch.device("cpu"))
    return train(plan, group, LocalReporter(Board()), lambda _rows: None)


def begun(plan: TrainPlan) -> tuple[Attempt, Path | None]:
    group = Group(device=torch.device("cpu"))
    return start.begin_attempt(plan, group, LocalReporter(Board()))


def test_a_checkpoint_that_a_living_attempt_removes_meanwhile_is_not_gone_on_from(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempt 1 lives: it commits step 10 and removes step 5 while the second start begins."""
    assert run(plan).status == "done"
    folder = RunFolder(plan.folder)
    old, new = checkpoints(folder.checkpoints)
    hidden = new.with_name("hidden")
    new.rename(hidden)
    real = RunFolder.begin

    def begin(self: RunFolder, attempt: Attempt) -> None:
        hidden.rename(new)
        shutil.rmtree(old)
        real(self, attempt)

    monkeypatch.setattr(RunFolder, "begin", begin)
    attempt, checkpoint = begun(plan)
    assert (attempt.number, attempt.start_step) == (2, 10)
    assert checkpoint == new
    assert attempt.resumed_from == new.name
    assert folder.attempts()[-1] == attempt


def test_a_checkpoint_that_is_removed_while_it_is_read_is_no_damaged_one(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(plan).status == "done"
    folder = RunFolder(plan.folder)
    old, new = checkpoints(folder.checkpoints)
    hidden = new.with_name("hidden")
    new.rename(hidden)
    real, calls = start.newest_of, list[int]()

    def newest_of(*args: Any, **options: Any) -> Any:
        if not calls:
            calls.append(1)
            (old / "manifest.json").unlink()
            try:
                return real(*args, **options)
            finally:
                hidden.rename(new)
                shutil.rmtree(old)
        return real(*args, **options)

    monkeypatch.setattr(start, "newest_of", newest_of)
    assert begun(plan)[1] == new


def test_a_disk_that_a_dead_part_has_filled_lets_the_next_attempt_begin(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(plan.folder)
    folder.begin(_attempt(1))
    part = folder.checkpoints / f"{checkpoint_name(5, 1)}.part"
    part.mkdir()
    (part / "model.safetensors").write_bytes(b"x" * 100)
    real = os.fsync

    def full(descriptor: int) -> None:
        if part.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    attempt, _ = begun(plan)
    assert attempt.number == 2
    assert not part.exists()
    names = sorted(path.name for path in (folder.path / "attempts").iterdir())
    assert names == ["0001.json", "0002.json"]


def test_drafts_of_attempts_that_were_killed_are_swept_away(plan: TrainPlan) -> None:
    folder = RunFolder(plan.folder)
    for name in (".0001.json.77", ".0002.json.78"):
        (folder.path / "attempts" / name).write_text("")
    begun(plan)
    names = sorted(path.name for path in (folder.path / "attempts").iterdir())
    assert names == [".0002.json.78", "0001.json"]  # whose number is not taken may yet take it


def test_ranks_vote_while_one_of_them_reads_for_long(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_group, "TIMEOUT_S", 2.0)
    real = start.newest_of

    def newest_of(*args: Any, **options: Any) -> Any:
        time.sleep(4)
        return real(*args, **options)

    monkeypatch.setattr(start, "newest_of", newest_of)
    found = of_ranks(
        2, lambda group: start.begin_attempt(plan, group, LocalReporter(Board()))[0].number
    )
    assert found == [1, 1]


def test_the_traceback_of_an_overtaken_attempt_bears_its_own_number(plan: TrainPlan) -> None:
    folder = RunFolder(plan.folder)
    for number, launch in ((1, "mine"), (2, "other")):
        folder.begin(_attempt(number, launch=launch))
    assert folder.keep_error(0, "x", launch="mine").endswith("/attempt-0001-rank-0.txt")


def test_an_attempt_is_written_down_as_it_began(plan: TrainPlan) -> None:
    attempt, _ = begun(plan)
    saved = json.loads((Path(plan.folder) / "attempts" / "0001.json").read_text())
    assert saved == asdict(attempt)


def _attempt(number: int, *, launch: str = "") -> Attempt:
    return Attempt(
        number=number, launch=launch, start_step=0, world_size=1, threads=1, resumed_from=""
    )
