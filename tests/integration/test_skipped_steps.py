"""An update that is not finite is skipped and named; the rows move on, the weights stand still."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ranks import end_well, start_ranks
from tests.tiny_runs import TOML, tiny_plan
from trainer.board import Board, LocalReporter
from trainer.checkpoint import checkpoints, load_weights, newest_whole, read_state
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder
from trainer.settings import CheckpointSettings, EvaluateSettings
from trainer.step import Objective


@pytest.fixture
def plan(tiny_store: Path, tmp_path: Path) -> TrainPlan:
    return replace(
        tiny_plan(tiny_store, tmp_path / "run", steps=10),
        evaluate=EvaluateSettings(),
        checkpoint=CheckpointSettings(every=1),
    )


REAL = Objective.forward


class Poison:
    """Makes the loss of some steps not a number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
        real = REAL

        def forward(
            objective: Objective, rows: Any, memory: Any, noise: Any
        ) -> tuple[Tensor, Tensor, Any]:
            loss, penalty, after = real(objective, rows, memory, noise)
            poisoned = loss * float("nan") if noise.step + 1 in steps else loss
            return poisoned, penalty, after

        monkeypatch.setattr(Objective, "forward", forward)


def weights_at(plan: TrainPlan, step: int) -> list[Tensor]:
    from model.transformer_xl import TransformerXL

    model = TransformerXL(plan.model)
    load_weights(RunFolder(plan.folder).checkpoints / f"step_{step:08d}-a0001", model)
    return [parameter.detach().clone() for parameter in model.parameters()]


def run(plan: TrainPlan) -> tuple[Any, Board]:
    board = Board()
    group = Group(device=torch.device("cpu"))
    return train(plan, group, LocalReporter(board), lambda _rows: None), board


def test_a_skipped_update_leaves_weights_and_moments_and_moves_the_rows(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    Poison(monkeypatch, {4, 6, 7})
    kept = replace(plan, checkpoint=CheckpointSettings(every=1, keep_last=20))
    verdict, board = run(kept)
    assert verdict.status == "done"
    assert all(
        torch.equal(a, b) for a, b in zip(weights_at(kept, 3), weights_at(kept, 4), strict=True)
    )
    assert not all(
        torch.equal(a, b) for a, b in zip(weights_at(kept, 4), weights_at(kept, 5), strict=True)
    )
    states = [
        read_state(RunFolder(kept.folder).checkpoints / f"step_{step:08d}-a0001")
        for step in range(1, 11)
    ]
    assert [state["rows"]["step"] for state in states] == list(range(1, 11))
    assert [state["counters"]["skipped"] for state in states] == [0, 0, 0, 1, 1, 2, 3, 3, 3, 3]
    notes = [note for note in board.drain().notes if "not finite" in note]
    assert [note.split(":")[0] for note in notes] == ["Step 4", "Step 6", "Step 7"]
    assert all("Documents in the batch: " in note for note in notes)


def test_three_in_a_row_stop_the_run_with_a_checkpoint_of_the_last_good_weights(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    Poison(monkeypatch, {5, 6, 7, 8})
    verdict, _ = run(plan)
    assert (verdict.status, verdict.kind) == ("failed", "error")
    assert "3 updates in a row were not finite" in verdict.reason
    newest, _ = newest_whole(RunFolder(plan.folder).checkpoints, [])
    assert newest is not None
    state = read_state(newest)
    assert state["counters"]["skipped_in_row"] >= 3
    assert state["step"] < 10
    assert "up to step 8" in verdict.reason
    for tensor in weights_at(plan, state["step"]):
        assert torch.isfinite(tensor).all()
    lines = list(RunFolder(plan.folder).lines())
    assert [line["step"] for line in lines if line.get("train/loss", 0) is None] == [5, 6, 7, 8]
    skipped = [line for line in lines if line["kind"] == "skipped"]
    assert [line["step"] for line in skipped] == [5, 6, 7, 8]
    for line in skipped:
        assert set(line["rows"]) == set(range(plan.layout.rows))
        assert len(line["rows"]) == len(line["doc_ids"]) == len(line["offsets"])
        assert all(offset >= 0 for offset in line["offsets"])
    Poison(monkeypatch, set())
    assert run(plan)[0].status == "done"  # a resume gets its chance


# One rank of two finds a loss that is no number; what the weights are before and after is saved.
OF_ONE_RANK = """
import os
import jobs.train, trainer.step
from jobs.entry import run

real = trainer.step.Objective.forward

def forward(objective, rows, memory, noise):
    loss, penalty, after = real(objective, rows, memory, noise)
    bad = os.environ["RANK"] == "1" and noise.step + 1 == 4
    return (loss * float("nan") if bad else loss), penalty, after

trainer.step.Objective.forward = forward
run(jobs.train.command)
"""
REST = """
[trainer]
steps = 6
threads = 1
[checkpoint]
every = 1
keep_last = 9
[tracking]
uri = "off"
[cluster]
launcher = "local"
"""


def test_what_is_not_finite_on_one_rank_is_skipped_on_all_and_named_with_the_rows_of_all(
    tiny_store: Path, tmp_path: Path
) -> None:
    config = tmp_path / "run.toml"
    config.write_text((TOML + REST).format(folder=tmp_path / "runs", store=tiny_store))
    end_well(start_ranks("-c", OF_ONE_RANK, str(config)))
    folder = RunFolder(tmp_path / "runs" / "run")
    lines = list(folder.lines())
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["train/skipped_steps"] for line in steps] == [0, 0, 0, 1, 1, 1]
    (skipped,) = [line for line in lines if line["kind"] == "skipped"]
    assert (skipped["step"], set(skipped["rows"])) == (4, {0, 1, 2, 3})
    states = [read_state(path) for path in checkpoints(folder.checkpoints)]
    assert [state["rows"]["step"] for state in states] == [1, 2, 3, 4, 5, 6]  # they move on
    weights = [
        (path / "model.safetensors").read_bytes() for path in checkpoints(folder.checkpoints)
    ]
    same = [before == after for before, after in pairwise(weights)]
    assert same == [False, False, True, False, False]
