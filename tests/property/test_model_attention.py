"""Every way to attend equals the plain definition, in value and in every gradient."""

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from model import attention_tiled, backends
from model.attention import Attention, Drop, Sight, plain_attention, sight
from model.attention_whole import whole_attention
from model.backends import BACKENDS, attention_of, in_words, settle
from model.config import Backend
from model.memory import Memory
from model.noise import Noise
from tests.models import fresh, random_memory, same, small_model

CPU = torch.device("cpu")
HERE: list[Backend] = [one for one in BACKENDS if one != "triton"]  # test_attention_triton.py
FAST: list[Backend] = [one for one in HERE if one != "plain"]
shapes = st.fixed_dictionaries(
    {
        "B": st.integers(1, 3),
        "L": st.one_of(st.integers(1, 9), st.just(70)),  # 70: more than one tile of queries
        "M": st.integers(0, 12),
        "H": st.integers(1, 3),
        "E": st.sampled_from([1, 4, 41]),
    }
)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that a head of a few queries is a tile of its own, and two heads are two.
    monkeypatch.setitem(attention_tiled._TILE_BYTES, "cpu", 8 * 20)


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


def results(
    attention: Attention, tensors: list[Tensor], seen: Sight, drop: Drop | None
) -> list[Tensor]:
    qu, qv, k, v, r = tensors
    out = attention((qu, qv), k, v, r, seen, drop)
    return [out, *torch.autograd.grad(out.sin().sum(), tensors)]


@pytest.mark.parametrize("backend", FAST)
@given(shape=shapes, seed=st.integers(0, 2**31), data=st.data())
def test_value_and_gradients_are_those_of_the_definition(
    backend: Backend, shape: dict[str, int], seed: int, data: st.DataObject
) -> None:
    tensors, seen = case(shape, data, seed)
    rows = torch.arange(shape["B"]) + seed % 7
    noise = Noise(seed=seed, step=3, rows=rows)
    drop = data.draw(st.sampled_from([None, Drop(rate=0.3, noise=noise, site=2)]))
    wanted = results(plain_attention, tensors, seen, drop)
    found = results(attention_of(backend, device=CPU, grad=True), tensors, seen, drop)
    for one, other in zip(found, wanted, strict=True):
        same(one, other, close=1e-12)
    with torch.no_grad():
        qu, qv, k, v, r = tensors
        out = attention_of(backend, device=CPU, grad=False)((qu, qv), k, v, r, seen, drop)
    same(out, wanted[0], close=1e-12)


@given(shape=shapes, seed=st.integers(0, 2**31), data=st.data())
def test_whole_matrices_are_the_definition_where_no_tiles_are_wanted(
    shape: dict[str, int], seed: int, data: st.DataObject
) -> None:
    tensors, seen = case(shape, data, seed)
    wanted = results(plain_attention, tensors, seen, None)
    for one, other in zip(results(whole_attention, tensors, seen, None), wanted, strict=True):
        same(one, other, close=1e-12)


@pytest.mark.parametrize("keep", [True, False])
def test_the_tiles_of_a_real_size_are_exact_to_float32(
    monkeypatch: pytest.MonkeyPatch, *, keep: bool
) -> None:
    monkeypatch.setitem(attention_tiled._TILE_BYTES, "cpu", 1 << 20)
    H, B, L, M, E = 3, 1, 200, 333, 64
    K = M + L
    source = torch.Generator().manual_seed(2)
    sizes = [(H, B, L, E), (H, B, L, E), (H, B, K, E), (H, B, K, E), (H, K + 1, E)]
    wide = [torch.randn(size, generator=source).double() / 3 for size in sizes]
    offset = torch.cat([torch.arange(400, 500), torch.arange(100)])[None]
    seen = sight(offset, torch.tensor([M]), memory=M)

    def tiled(*given: Any) -> Tensor:
        return attention_tiled.tiled_attention(*given, keep=keep)

    wanted = results(whole_attention, [x.requires_grad_() for x in wide], seen, None)
    narrow = [x.detach().float().requires_grad_() for x in wide]
    for one, other in zip(results(tiled, narrow, seen, None), wanted, strict=True):
        same(one.double(), other, close=2e-5)


@pytest.mark.parametrize("backend", HERE)
@example(usable=2, offset=1)
@given(usable=st.integers(0, 5), offset=st.integers(0, 8))
def test_what_no_query_may_see_changes_no_bit(backend: Backend, usable: int, offset: int) -> None:
    model = small_model(backend=backend, clamp_len=3)
    tokens = torch.arange(8).view(2, 4)
    offsets = torch.stack([torch.arange(offset, offset + 4), torch.arange(4)])
    memory = random_memory(model, 2, 5)
    poisoned = memory.states.clone()
    poisoned[:, 0, : 5 - min(usable, offset)] = 1e4
    poisoned[:, 1] = -1e4
    found: list[list[Tensor]] = []
    for states in (memory.states, poisoned):
        hidden, _ = model(
            tokens, offsets, Memory(states=states, usable=torch.tensor([usable, usable]))
        )
        grads = torch.autograd.grad(hidden.sin().sum(), list(model.layers.parameters()))
        found.append([hidden, *grads])
    assert torch.equal(found[0][0], found[1][0])
    for one, other in zip(*found, strict=True):
        # Every gradient through a hidden key is 0 times something of its size.
        same(one, other, close=1e-9)


@pytest.mark.parametrize("backend", ["auto", "dense", "chunked"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_row_is_the_same_to_the_last_bit_whatever_stands_beside_it(
    backend: Backend, *, half: bool, grad: bool
) -> None:
    H, B, L, M, E = 2, 4, 70, 9, 5
    source = torch.Generator().manual_seed(1)
    sizes = [(H, B, L, E), (H, B, L, E), (H, B, M + L, E), (H, B, M + L, E)]
    rows = [torch.randn(size, generator=source) for size in sizes]
    r = torch.randn(H, M + L + 1, E, generator=source)
    attend = attention_of(backend, device=CPU, grad=grad)

    def of_rows(low: int, high: int) -> list[Tensor]:
        seen = sight(
            torch.arange(50, 50 + L).expand(high - low, L),
            torch.full((high - low,), M),
            memory=M,
        )
        noise = Noise(seed=1, step=2, rows=torch.arange(low, high))
        qu, qv, k, v = given = [x[:, low:high].clone().requires_grad_(grad) for x in rows]
        with torch.autocast("cpu", torch.bfloat16, enabled=half), torch.set_grad_enabled(grad):
            out = attend((qu, qv), k, v, r, seen, Drop(rate=0.2, noise=noise, site=1))
        return [out, *(torch.autograd.grad(out.float().sin().sum(), given) if grad else ())]

    together = of_rows(0, B)
    for parts in (
        [of_rows(0, 2), of_rows(2, 4)],
        [of_rows(row, row + 1) for row in range(B)],
    ):
        for whole, *pieces in zip(together, *parts, strict=True):
            assert torch.equal(whole, torch.cat(pieces, dim=1))


@pytest.mark.parametrize("changes", [{}, {"pre_norm": True, "attention_dropout": 0.3}])
def test_bf16_is_float32_but_for_rounding(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    model = small_model(dtype=torch.float32, backend="dense", **changes)
    tokens = torch.arange(18).view(2, 9)
    offset = torch.arange(9).expand(2, 9)
    wanted, _ = model(tokens, offset, fresh(model, 2))
    exact = torch.autograd.grad(wanted.sin().sum(), list(model.layers.parameters()))
    for small in (0, 1 << 19):  # tiles, whole matrices
        monkeypatch.setattr(backends, "_SMALL", small)
        for backend in HERE:
            model.chosen = backend
            with torch.autocast("cpu", torch.bfloat16):
                found, memory = model(tokens, offset, fresh(model, 2))
                nll = model.nll(found, tokens)
            assert found.dtype == memory.states.dtype == nll.dtype == torch.float32
            same(found, wanted, close=0.1)
            grads = torch.autograd.grad(found.sin().sum(), list(model.layers.parameters()))
            for grad, other in zip(grads, exact, strict=True):
                assert (grad - other).norm() < 0.1 * other.norm() + 1e-3
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                same(model(tokens, offset, fresh(model, 2))[0], wanted, close=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("backend", HERE)
def test_a_backend_that_works_passes_its_probe(backend: Backend, dtype: torch.dtype) -> None:
    settled = settle(backend, device=CPU, dtype=dtype, head_width=41)
    assert (settled.backend, settled.fault) == (backend, "")
    assert in_words(backend, device=CPU) in BACKENDS


def raises(*_: object) -> Tensor:
    raise RuntimeError("no such kernel\nand a long story")


def forgets_positions(q: Any, k: Tensor, v: Tensor, r: Tensor, *rest: Any) -> Tensor:
    return plain_attention(q, k, v, r * 0, *rest)


def poisons(*given: Any) -> Tensor:
    return plain_attention(*given) * torch.nan


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (raises, "RuntimeError: no such kernel"),
        (forgets_positions, "times as far off"),
        (poisons, "inf"),
    ],
)
def test_a_backend_that_fails_its_probe_is_replaced_and_says_so(
    monkeypatch: pytest.MonkeyPatch, broken: Attention, why: str, dtype: torch.dtype
) -> None:
    monkeypatch.setitem(backends._FUNCTIONS, "chunked", broken)
    settled = settle("chunked", device=CPU, dtype=dtype, head_width=8)
    assert settled.backend == "dense"
    assert why in settled.fault
    assert "\n" not in settled.fault
    assert settled.fault.startswith("Attention chunked failed its probe on cpu")
