"""A run that ends early is scored like one that ends in time, and compares like with like."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from tests.tiny_runs import tiny_plan
from trainer.best import value_of
from trainer.board import Board, LocalReporter
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder
from trainer.settings import EvaluateSettings, OptimizerSettings


def run(plan: TrainPlan) -> str:
    group = Group(device=torch.device("cpu"))
    return train(plan, group, LocalReporter(Board()), lambda _rows: None).status


def memories(file: Path) -> set[int]:
    return {one["memory"] for one in json.loads(file.read_text())}


def test_a_run_that_ends_early_gets_its_final_evaluation(tiny_store: Path, tmp_path: Path) -> None:
    plan = replace(
        tiny_plan(tiny_store, tmp_path / "run", steps=10),
        optimizer=OptimizerSettings(learning_rate=1e-30, warmup_steps=3),
        evaluate=EvaluateSettings(every=2, patience=1),
    )
    assert run(plan) == "done"
    folder = RunFolder(plan.folder)
    assert memories(folder.evaluation(2)) == {20}
    assert memories(folder.evaluation(4)) == {20, 0}
    lines = list(folder.lines())
    assert [line["step"] for line in lines if line["kind"] == "evaluation"] == [2, 4]
    assert lines[-1].keys() >= {"eval/loss", "eval/memory_0/loss"}
    assert run(plan) == "done"  # again: it is over, and known to be
    assert list(folder.lines()) == lines


def test_another_memory_length_is_another_measure(tiny_store: Path, tmp_path: Path) -> None:
    plan = replace(
        tiny_plan(tiny_store, tmp_path / "run", steps=4),
        evaluate=EvaluateSettings(every=2, patience=2),
    )
    assert run(plan) == "done"
    file = RunFolder(plan.folder).evaluation(2)
    assert value_of(file, metric="eval/loss", memory=20) is not None
    assert value_of(file, metric="eval/loss", memory=8) is None
    longer = replace(
        plan,
        model=replace(plan.model, memory=8),
        trainer=replace(plan.trainer, steps=6),
        optimizer=OptimizerSettings(learning_rate=1e-30, warmup_steps=3),
    )
    assert run(longer) == "done"
    state = json.loads(
        (RunFolder(plan.folder).checkpoints / "step_00000006-a0002" / "state.json").read_text()
    )
    assert state["counters"]["best_step"] in (4, 6)
    assert memories(RunFolder(plan.folder).evaluation(4)) == {8}
    assert state["counters"]["stale"] <= 1
