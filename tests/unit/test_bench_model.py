"""The benches of the model say what they promise; their numbers are nobody's test."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from jobs import bench_model
from jobs.bench_attention import Point, fit, measure_attention
from jobs.bench_generate import MODEL as GENERATED
from jobs.bench_generate import measure_generate
from jobs.bench_model import MODEL, Shape, measure_model
from jobs.bench_table import table
from jobs.bench_windows import Window, measure_windows
from model.recall import Recall

TINY = {"width": 16, "heads": 2, "head_width": 8, "inner_width": 16}


@pytest.fixture(autouse=True)
def _threads() -> None:
    torch.set_num_threads(1)


def check(found: dict[str, Any]) -> None:
    for figure in found["figures"]:
        assert figure["ratio"] > 0
        if "lowest" in figure:
            assert figure["lowest"] <= figure["ratio"] <= figure["highest"]
        assert figure["name"] in table(found)
    assert found["machine"]["torch"] in table(found)
    assert len(found["machine"]["load"]) == 3


def test_the_model_is_measured_beside_the_peak_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def here(act: Callable[..., int], *given: Any) -> int:
        return max(1, act(*given, 1))

    monkeypatch.setattr(bench_model, "apart", here)
    found = measure_model(
        shapes=(Shape(rows=2, segment=8),),
        config=replace(MODEL, layers=1, **TINY),
        vocab_size=64,
        loss_rows=16,
        repeats=1,
        peak_size=64,
    )
    check(found)
    names = [figure["name"] for figure in found["figures"]]
    assert names[:3] == ["training step", "chunked step", "evaluation"]
    assert names[-2:] == ["chunked memory", "loss"]
    assert found["peaks"]["fp32"] > 0


def test_attention_is_fitted_to_its_size_and_a_memory_is_its_own_arithmetic() -> None:
    points = (Point(rows=1, segment=8, memory=0), Point(rows=1, segment=16, memory=16))
    found = measure_attention(points=points, heads=2, head_width=8, repeats=1)
    check(found)
    assert found["fit"]["worst"] >= 1
    memory = found["memory"]
    assert memory["counted"] == memory["states"] == 4 * 2 * 256 * 16 * 4
    assert memory["projected"] == 4 * memory["states"]  # keys and values, and room for M more


def test_a_line_is_fitted_exactly_where_there_is_one() -> None:
    found = fit([10, 20, 40], [0.5, 1.0, 2.0])
    assert found["seconds_per_unit"] == pytest.approx(0.05)
    assert found["worst"] == pytest.approx(1)
    assert found["exponent"] == pytest.approx(1)
    assert fit([10, 20, 40], [0.5, 2.0, 8.0])["exponent"] == pytest.approx(2)


def test_generation_is_measured_beside_hidden_states(monkeypatch: pytest.MonkeyPatch) -> None:
    read, lengths = Recall.read, list[int]()

    def counted(self: Recall, tokens: Tensor, offset: Tensor) -> Tensor:
        lengths.append(tokens.shape[1])
        return read(self, tokens, offset)

    monkeypatch.setattr(Recall, "read", counted)
    config = replace(GENERATED, layers=1, **TINY)
    found = measure_generate(lengths=(6,), config=config, tokens=2, repeats=1)
    check(found)
    assert found["figures"][0]["memory"] == 6
    assert lengths == [6, 1, 1, 1, 1]  # the memory, then 2 tokens in each of 2 rounds, that one way


def test_evaluation_is_measured_beside_a_window_slid_over_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, windows = list[tuple[int, int, int]](), list[torch.Size]()
    read, slide = Recall.read, Window.forward

    def counted(self: Recall, tokens: Tensor, offset: Tensor) -> Tensor:
        seen.append((tokens.shape[1], int(offset[0, 0]), int(self._usable[0])))
        return read(self, tokens, offset)

    def slid(self: Window, tokens: Tensor, targets: Tensor) -> Tensor:
        windows.append(tokens.shape)
        return slide(self, tokens, targets)

    monkeypatch.setattr(Recall, "read", counted)
    monkeypatch.setattr(Window, "forward", slid)
    config = replace(GENERATED, layers=1, **TINY)
    found = measure_windows(lengths=(6,), config=config, segment=4, repeats=1)
    check(found)
    assert found["figures"][0]["memory"] == 6
    assert seen == [(4, 0, 0), (4, 4, 4), (4, 8, 6), (4, 12, 6)]  # filled, then with 6 in sight
    assert windows == [(1, 6), (1, 6)]


def test_the_last_of_a_window_sees_all_of_it_and_nothing_sees_what_comes_after() -> None:
    window = Window(replace(GENERATED, layers=2, **TINY), 5).eval()
    tokens, target = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([6])
    known = window(tokens, target)
    for place in range(5):
        other = tokens.clone()
        other[0, place] = 9
        assert not torch.equal(window(other, target), known)
    seen: list[Tensor] = []
    window.layers[-1].register_forward_hook(lambda _module, _given, out: seen.append(out[0, :-1]))
    window(tokens, target)
    window(torch.tensor([[1, 2, 3, 4, 9]]), target)
    assert torch.equal(*seen)
