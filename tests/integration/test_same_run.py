"""The same run where it is hardest: four workers, no dropout, a stop where the epoch changes."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.test_resume import LONG, Ranks, losses, numbers, train_here
from tests.tiny_runs import tiny_plan
from trainer.run_folder import RunFolder
from trainer.settings import EvaluateSettings

SHORT = 60  # steps: float sums in another order drift apart, the longer the further


def test_four_workers_killed_and_started_again_repeat_every_bit(
    tiny_store: Path, tmp_path: Path
) -> None:
    """Two of anything cannot show it: the sum of two numbers has no order, that of three has."""
    whole, broken = (Ranks(tmp_path / name, tiny_store) for name in ("whole", "broken"))
    whole.train(4)
    broken.train_until(4, 12, signal_number=signal.SIGKILL)
    broken.train(4)
    assert losses(broken.folder) == losses(whole.folder)
    attempts = RunFolder(broken.folder).attempts()
    assert [attempt.world_size for attempt in attempts] == [4, 4]
    assert 5 <= attempts[1].start_step < LONG


def test_a_run_without_dropout_moves_from_two_workers_to_one_and_back(
    tiny_store: Path, tmp_path: Path
) -> None:
    """With dropout test_resume.py shows it."""
    whole, moved = (Ranks(tmp_path / name, tiny_store, dropout=0.0) for name in ("whole", "moved"))
    whole.train(2)
    moved.train_until(2, 8, signal_number=signal.SIGINT)
    moved.train_until(1, 20, signal_number=signal.SIGINT)
    moved.train(2)
    assert [one.world_size for one in RunFolder(moved.folder).attempts()] == [2, 1, 2]
    assert len(losses(moved.folder)) == LONG
    assert losses(moved.folder)[:SHORT] == [
        (step, pytest.approx(loss, rel=1e-5)) for step, loss in losses(whole.folder)[:SHORT]
    ]


def test_a_run_stopped_where_its_epoch_changes_is_the_run_that_was_never_stopped(
    tiny_store: Path, tmp_path: Path
) -> None:
    plan = tiny_plan(tiny_store, tmp_path / "whole", steps=400)
    plan = replace(plan, evaluate=EvaluateSettings())
    train_here(plan, stop_after=250)
    lines = [line for line in numbers(plan.folder) if line["kind"] == "step"]
    change = next(line["step"] for line in lines if line["data/epoch"] == 1)
    assert 10 < change < 240
    cut = replace(plan, folder=str(tmp_path / "cut"))
    for stop in (change - 2, change - 1, change, change + 1):
        assert train_here(cut, stop_after=stop).status == "stopped"
    train_here(cut, stop_after=change + 8)
    again = [line for line in numbers(cut.folder) if line["kind"] == "step"]
    assert len(again) >= change + 8
    assert again == lines[: len(again)]
    assert len(RunFolder(cut.folder).attempts()) == 5
