"""The fast forms of attention equal the plain one, in value and in every gradient."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from model.attention import Sight, dense_attention, plain_attention, sdpa_attention, sight
from tests.models import fresh, same, small_model

shapes = st.fixed_dictionaries(
    {
        "B": st.integers(1, 3),
        "L": st.integers(1, 9),
        "M": st.integers(0, 12),
        "H": st.integers(1, 3),
        "E": st.sampled_from([1, 4, 41]),
    }
)


def case(shape: dict[str, int], data: st.DataObject, seed: int) -> tuple[list[Tensor], Sight]:
    B, L, M, H, E = (shape[axis] for axis in "BLMHE")
    K = M + L
    source = torch.Generator().manual_seed(seed)
    sizes = [(H, B, L, E), (H, B, L, E), (H, B, K, E), (H, B, K, E), (H, K + 1, E)]
    tensors = [
        torch.empty(size, dtype=torch.float64).normal_(generator=source).requires_grad_()
        for size in sizes
    ]
    usable = data.draw(st.lists(st.integers(0, M), min_size=B, max_size=B))
    offset = torch.randint(0, K + 2, (B, L), generator=source)
    window = data.draw(st.integers(0, K))
    return tensors, sight(offset, torch.tensor(usable), memory=M, window=window)


@given(shape=shapes, seed=st.integers(0, 2**31), data=st.data())
def test_dense_attention_is_plain_attention(
    shape: dict[str, int], seed: int, data: st.DataObject
) -> None:
    tensors, seen = case(shape, data, seed)
    lost = torch.rand(
        shape["B"], shape["H"], shape["L"], shape["M"] + shape["L"],
        generator=torch.Generator().manual_seed(seed),
    ) < 0.3  # fmt: skip
    drop = data.draw(st.sampled_from([None, lambda weights: weights.masked_fill(lost, 0)]))
    results: list[tuple[Tensor, tuple[Tensor, ...]]] = []
    for attention in (plain_attention, dense_attention):
        qu, qv, k, v, r = tensors
        out = attention((qu, qv), k, v, r, seen, drop)
        results.append((out, torch.autograd.grad(out.sin().sum(), tensors)))
    (wanted, wanted_grads), (found, found_grads) = results
    same(found, wanted, close=1e-12)
    for one, other in zip(found_grads, wanted_grads, strict=True):
        same(one, other, close=1e-12)


@given(shape=shapes, seed=st.integers(0, 2**31), data=st.data())
def test_sdpa_attention_is_plain_attention(
    shape: dict[str, int], seed: int, data: st.DataObject
) -> None:
    tensors, seen = case(shape, data, seed)
    with torch.no_grad():
        qu, qv, k, v, r = tensors
        wanted = plain_attention((qu, qv), k, v, r, seen)
        same(sdpa_attention((qu, qv), k, v, r, seen), wanted, close=1e-12)


@pytest.mark.parametrize("changes", [{}, {"pre_norm": True, "attention_dropout": 0.3}])
def test_bf16_is_float32_but_for_rounding(changes: dict[str, Any]) -> None:
    model = small_model(dtype=torch.float32, backend="dense", **changes)
    tokens = torch.arange(18).view(2, 9)
    offset = torch.arange(9).expand(2, 9)
    wanted, _ = model(tokens, offset, fresh(model, 2))
    for backend in ("dense", "plain", "sdpa"):
        model.chosen = backend
        with torch.set_grad_enabled(backend == "dense"), torch.autocast("cpu", torch.bfloat16):
            found, memory = model(tokens, offset, fresh(model, 2))
            nll = model.nll(found, tokens)
        assert found.dtype == memory.states.dtype == nll.dtype == torch.float32
        same(found, wanted, close=0.1)
