"""`longrow check` finds each planted mistake at its own point, and nothing where nothing is."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import model.transformer_xl as xl
import trainer.step
from model.attention import Sight, sight
from model.config import ModelConfig
from model.memory import Memory, remember
from model.positions import distance_vectors
from model.recall import Recall
from model.transformer_xl import TransformerXL
from pipeline.batch import Batch
from pipeline.block import Block
from pipeline.layout import Layout
from pipeline.server import RowServer
from pipeline.store import Store
from tests.command import code_of
from tests.integration.test_bad_input import TOML
from trainer import evaluation
from trainer.check import POINTS, Case, check, make_case

M = 20
LAYOUT = Layout(rows=4, segment=8, seed=3)
CONFIGS: list[dict[str, Any]] = [
    {},
    {"memory": 0},
    {"memory": 5},
    {"memory": 8, "pre_norm": True, "untie_r": True},
    {"clamp_len": 6, "same_length": True},
    {"cutoffs": (20, 120), "div_val": 2, "tie_weights": False},
]


def case_of(store: Path, *, step: int = 0, layout: Layout = LAYOUT, **changes: Any) -> Case:
    opened = Store.open(str(store))
    sizes = {"layers": 2, "width": 16, "heads": 2, "head_width": 8, "inner_width": 16}
    config = ModelConfig(
        vocab_size=opened.vocab_size, **{**sizes, "memory": M, "init_std": 0.3, **changes}
    )
    state = None
    if step:
        server = RowServer(opened, layout)
        state = server.read(server.initial_state(), step, (0, 4)).after
    return make_case(TransformerXL(config, seed=1), opened, layout, state)


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
@pytest.mark.parametrize("step", [0, 7])
def test_nothing_is_wrong_where_nothing_is(
    tiny_store: Path, changes: dict[str, Any], step: int
) -> None:
    points = check(case_of(tiny_store, step=step, **changes))
    assert [(point.name, point.wrong) for point in points] == [(name, "") for name in POINTS]


PADDED = dataclasses.replace(LAYOUT, boundary="pad")


@pytest.mark.parametrize("step", [0, 7])
def test_nothing_is_wrong_in_padded_rows_until_pads_are_scored(
    tiny_store: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def scored(self: Block, index: int) -> Batch:
        batch = BATCH(self, index)
        return dataclasses.replace(batch, targets=np.where(batch.doc_id < 0, 7, batch.targets))

    points = check(case_of(tiny_store, step=step, layout=PADDED))
    assert [point.wrong for point in points] == [""] * len(POINTS)
    monkeypatch.setattr(Block, "batch", scored)
    points = check(case_of(tiny_store, step=step, layout=PADDED))
    wrong = [point for point in points if point.wrong]
    assert [point.name for point in wrong] == ["segments in order in the row"]
    assert "wanted is -100" in wrong[0].wrong


def grows_from_nothing(memory: Memory, new: list[Tensor], *, length: int) -> Memory:
    """The published way: as many states as were read, until there are M."""
    after = remember(memory, new, length=max(length, M))
    return after.resized(int(after.usable.max()))


def keeps_its_graph(memory: Memory, new: list[Tensor], *, length: int) -> Memory:
    return remember.__wrapped__(memory, new, length=length)  # pyright: ignore[reportFunctionMemberAccess]


def never_trims(memory: Memory, new: list[Tensor], *, length: int) -> Memory:
    return remember(memory, new, length=max(length, int(memory.usable.max()) + new[0].shape[1]))


def staircase(offset: Tensor, usable: Tensor, *, memory: int, window: int = 0) -> Sight:
    """Each query sees as many keys as the first one: the oldest states are out of sight."""
    return sight(offset, usable, memory=memory, window=window or memory + 1 if memory else 0)


def no_reset(offset: Tensor, usable: Tensor, *, memory: int, window: int = 0) -> Sight:
    return sight(torch.full_like(offset, 1 << 40), usable, memory=memory, window=window)


def one_off(count: int, width: int, **how: Any) -> Tensor:
    """Distances 1 .. K where 0 .. K - 1 were meant."""
    vectors = distance_vectors(count + 1, width, **how)
    return torch.cat([vectors[:count], vectors[-1:]])


def rows_change_places(self: Block, index: int) -> Batch:
    batch = BATCH(self, index)
    if batch.step % 2 == 0:
        return batch
    names = ("tokens", "targets", "doc_id", "offset", "reset", "epoch")
    return dataclasses.replace(batch, **{name: getattr(batch, name)[::-1].copy() for name in names})


BATCH = Block.batch


def loses_the_first(nll: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """As where labels are shifted once more inside the model."""
    return nll[:, 1:].sum(dtype=torch.float64), (targets[:, 1:] >= 0).sum()


class Forgets(Recall):
    def read(self, tokens: Tensor, offset: Tensor) -> Tensor:
        self._usable.zero_()
        return super().read(tokens, offset)


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "memory shape a layer": (xl, "remember", grows_from_nothing),
    "detached": (xl, "remember", keeps_its_graph),
    "trimmed to M": (xl, "remember", never_trims),
    "rectangular mask": (xl, "sight", staircase),
    "distances aligned": (xl, "distance_vectors", one_off),
    "reset per row at document boundaries": (xl, "sight", no_reset),
    "segments in order in the row": (Block, "batch", rows_change_places),
    "loss on the current segment only": (trainer.step, "loss_sum", loses_the_first),
    "evaluation with memory reused": (evaluation, "Recall", Forgets),
}


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("step", [0, 7])
def test_a_planted_mistake_is_found_at_its_own_point_and_at_no_other(
    tiny_store: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: int
) -> None:
    owner, attribute, wrong = PLANTED[name]
    monkeypatch.setattr(owner, attribute, wrong)
    points = check(case_of(tiny_store, step=step))
    assert [point.name for point in points if point.wrong] == [name]
    told = next(point.wrong for point in points if point.wrong)
    assert "could not be tried" not in told


def test_the_command_prints_nine_lines_and_its_code_says_whether_all_is_well(
    tmp_path: Path,
    tiny_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(TOML.format(store=tiny_store))
    assert code_of("check", "run.toml") == 0  # before anything was trained
    assert len(capsys.readouterr().out.splitlines()) == 9
    assert not Path("runs").exists()
    assert code_of("train", "run.toml") == 0
    capsys.readouterr()
    assert code_of("check", "run", "--json") == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == [f"ok     {name}" for name in POINTS]
    assert json.loads(last)["wrong"] == []
    monkeypatch.setattr(xl, "sight", no_reset)
    assert code_of("check", "run", "--json") == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["wrong"] == ["reset per row at document boundaries"]
    assert [line.split()[0] for line in lines].count("WRONG") == 1
