"""Attention against its definition, one pair of query and key at a time."""

import math

import pytest
import torch

from model.attention import plain_attention, sight, slide
from model.attention_whole import fused, sdpa_attention, whole_attention
from model.backends import chunked_attention, dense_attention
from model.config import ModelError
from model.positions import distance_vectors
from model.reach import Reach


@pytest.mark.parametrize(("L", "M"), [(1, 0), (1, 3), (4, 0), (3, 5), (6, 2)])
def test_slide_moves_each_distance_under_its_key(L: int, M: int) -> None:
    K = M + L
    by_distance = torch.arange(2 * L * (K + 1), dtype=torch.float64).view(2, L, K + 1)
    slid = slide(by_distance)
    for query in range(L):
        for key in range(M + query + 1):
            distance = M + query - key
            assert torch.equal(slid[:, query, key], by_distance[:, query, K - 1 - distance])


@pytest.mark.parametrize(
    "attention",
    [plain_attention, whole_attention, dense_attention, chunked_attention, sdpa_attention],
)
@pytest.mark.parametrize(("L", "M", "window"), [(4, 0, 0), (1, 5, 0), (3, 5, 0), (5, 2, 3)])
@torch.no_grad()
def test_a_key_is_weighed_by_its_own_distance(attention, L: int, M: int, window: int) -> None:  # noqa: ANN001
    # Queries of one, keys of zero: a weight depends on its distance alone. Values are keys'
    # numbers in one-hot form, so the result is the weights.
    K = M + L
    usable = torch.tensor([M, M // 2])
    offset = torch.tensor([[M + 1 + i for i in range(L)], [max(0, i - 1) for i in range(L)]])
    score_of = torch.linspace(-1, 2, K, dtype=torch.float64)  # of distance 0, 1, ...
    r = torch.cat([score_of.flip(0), torch.tensor([99.0])]).double().view(1, K + 1, 1)
    one, zero = torch.ones(1, 2, L, 1).double(), torch.zeros(1, 2, K, 1).double()
    v = torch.eye(K).double().expand(1, 2, K, K)
    # sdpa wants values as wide as keys: give all of them that width
    pad = torch.zeros(1, 2, 1, K - 1).double()
    q = torch.cat([one, pad.expand(1, 2, L, K - 1)], dim=3)
    k = torch.cat([zero, pad.expand(1, 2, K, K - 1)], dim=3)
    r = torch.cat([r, torch.zeros(1, K + 1, K - 1).double()], dim=2)
    seen = sight(offset, usable, memory=M, window=window)
    found = attention((q * 0, q), k, v, r, seen)[0]  # (B, L, K)
    for row in range(2):
        for i in range(L):
            far = min(int(offset[row, i]), int(usable[row]) + i)
            far = min(far, window - 1) if window else far
            weight = {d: math.exp(score_of[d]) for d in range(far + 1)}
            wanted = [weight.get(M + i - j, 0.0) / sum(weight.values()) for j in range(K)]
            assert found[row, i].tolist() == pytest.approx(wanted, abs=1e-12)


def test_positions_are_sines_then_cosines_by_distance_and_clamp() -> None:
    found = distance_vectors(
        7, 6, clamp_len=4, device=torch.device("cpu"), dtype=torch.float64
    ).tolist()
    for row, distance in zip(found, [4, 4, 4, 3, 2, 1, 0], strict=False):
        angles = [distance / 10_000 ** (2 * n / 6) for n in range(3)]
        wanted = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        assert row == pytest.approx(wanted, abs=1e-12)
    assert found[7] == [0.0] * 6  # the spare
    assert len(found) == 8


@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)], ids=["float32", "bfloat16"]
)
def test_a_far_distance_keeps_its_phase(dtype: torch.dtype, close: float) -> None:
    far = 40_001
    vectors = distance_vectors(far + 1, 8, clamp_len=0, device=torch.device("cpu"), dtype=dtype)
    wanted = [math.sin(far / 10_000 ** (n / 4)) for n in range(4)]
    assert vectors[0, :4].tolist() == pytest.approx(wanted, abs=close)


def test_a_reach_that_sees_less_than_nothing_is_refused() -> None:
    with pytest.raises(ModelError, match="window = -1"):
        Reach(memory=3, window=-1)


@pytest.mark.parametrize("E", [8, 41, 48])
@pytest.mark.parametrize(("L", "K"), [(1, 16), (5, 21), (16, 32)])
def test_what_a_kernel_wants_filled_up_changes_no_number(E: int, L: int, K: int) -> None:
    q, k, v = torch.randn(2, 3, L, E), torch.randn(2, 3, K, E), torch.randn(2, 3, K, E)
    bias = torch.randn(2, 3, L, K).masked_fill(torch.rand(2, 3, L, K) < 0.3, -math.inf)
    bias[..., -1] = 0.5  # something is seen
    wanted = torch.softmax(q @ k.mT + bias, dim=3) @ v
    for align in ((1, 1), (8, 16)):
        out = fused(q, k, v, bias, align=align)
        assert out.shape == q.shape
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
