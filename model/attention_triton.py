"""Attention in one kernel a pass, for a GPU: scores by content and by distance never leave the chip.

Not run on a GPU so far: compared with the definition in Triton's interpreter, and compiled ahead of
time for sm_80 and sm_90 (tests/unit/test_attention_triton.py).

A program takes T queries and walks over blocks of T keys, those alone that one of its queries may
see. In such a square the distance of query a and key b is c + T + a - b: two blocks of T distances,
`low` from c and `high` from c + T, hold all of them. One product with each block gives scores by
distance; `_turned` puts each under its key, a rotation of every row, which is its own inverse. The
next block of keys needs the next lower distances, so `low` becomes its `high`: one product a square.

Nothing is added up by atomics, so the same inputs give the same bits: the backward pass writes the
gradient of scores by distance, (H, B * L, K + 1) in half precision, and two products of whole
matrices make of it the gradients of q plus v and of r.
"""
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false, reportIndexIssue=false
# pyright: reportInvalidTypeForm=false, reportAttributeAccessIssue=false
# ruff: noqa: ANN001, ANN202, PLR0913, E501

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.attention import Queries, Sight, product_type

LOG2_E = tl.constexpr(1.4426950408889634)  # kernels use powers of 2
MOST_HEAD_WIDTH = 128


def fused_attention(q: Queries, k: Tensor, v: Tensor, r: Tensor, seen: Sight) -> Tensor:
    """Attend with the kernels; arguments and result as `plain_attention`, without dropout.

    Under autocast, products are of its type.
    """
    product = product_type(k)
    inputs = (x.to(product).contiguous() for x in (*q, k, v, r))
    return _Fused.apply(*inputs, seen.far.contiguous())


def fits(dtype: torch.dtype, head_width: int) -> bool:
    """Whether the kernels are for such products: half precision; any in the interpreter."""
    half = dtype in (torch.bfloat16, torch.float16)
    return head_width <= MOST_HEAD_WIDTH and (half or _is_interpreted())


def _is_interpreted() -> bool:
    return bool(triton.knobs.runtime.interpret)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, r: Tensor, far: Tensor
    ) -> Tensor:
        H, B, L, E = qu.shape
        out = torch.empty_like(qu)
        log_sum = torch.empty((H, B, L), dtype=torch.float32, device=qu.device)
        grid, sizes = _launch(L, H * B, E)
        _forward[grid](qu, qv, k, v, r, far, out, log_sum, B, L, k.shape[2], **sizes)
        ctx.save_for_backward(qu, qv, k, v, r, far, out, log_sum)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        qu, qv, k, v, r, far, out, log_sum = ctx.saved_tensors
        H, B, L, E = qu.shape
        K = k.shape[2]
        d_out = grad_outputs[0].contiguous()
        level = (d_out.float() * out.float()).sum(dim=-1)
        d_qu, d_k, d_v = torch.empty_like(qu), torch.empty_like(k), torch.empty_like(v)
        by_distance = qu.new_zeros(H, B * L, K + 1)
        common = (qu, qv, k, v, r, far, d_out, log_sum, level)
        grid, sizes = _launch(L, H * B, E)
        _backward_queries[grid](*common, d_qu, by_distance, B, L, K, **sizes)
        grid, sizes = _launch(K, H * B, E)
        _backward_keys[grid](*common, d_k, d_v, B, L, K, **sizes)
        d_qv = torch.bmm(by_distance, r).view(H, B, L, E)
        d_r = torch.bmm(by_distance.mT, qv.view(H, B * L, E))
        return d_qu, d_qv, d_k, d_v, d_r, None


def _launch(length: int, pairs: int, head_width: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs, and what a kernel is compiled for: E, its power of two, a square's side (T)."""
    T = 16 if _is_interpreted() else 32  # with 64 the registers of sm_80 spill
    padded = max(16, triton.next_power_of_2(head_width))
    sizes = {"E": head_width, "EP": padded, "T": T, "num_warps": 4, "num_stages": 2}
    return (triton.cdiv(length, T), pairs), sizes


@triton.jit
def _rows(start, rows, count, columns, E: tl.constexpr):
    """Load rows of E numbers; 0 where there is no such row."""
    inside = (rows >= 0)[:, None] & (rows < count)[:, None] & (columns < E)[None, :]
    return tl.load(start + rows[:, None] * E + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _distances(start, lowest, K, columns, E: tl.constexpr, T: tl.constexpr):
    """Load position keys of distances lowest, ..., lowest + T - 1; 0 where there is none."""
    distance = lowest + tl.arange(0, T)
    return _rows(start, tl.where(distance >= 0, K - 1 - distance, -1), K, columns, E)


@triton.jit
def _turned(low, high, T: tl.constexpr):
    """Put scores by distance under their keys."""
    a = tl.arange(0, T)
    by_distance = tl.where(a[None, :] <= a[:, None], high, low)
    return tl.gather(by_distance, (a[:, None] - a[None, :]) & (T - 1), 1)


@triton.jit
def _by_distance(q, positions, lowest, K, columns, E: tl.constexpr, T: tl.constexpr):
    """Score queries by distances lowest, ..., lowest + T - 1."""
    keys = _distances(positions, lowest, K, columns, E, T)
    return tl.dot(q, tl.trans(keys), input_precision="ieee")


@triton.jit
def _visible(i, j, far, L, K):
    """Which queries (T,) see which keys (T,): the offset rule."""
    distance = (K - L) + i[:, None] - j[None, :]
    return (distance >= 0) & (distance <= far[:, None]) & (j < K)[None, :] & (i < L)[:, None]


@triton.jit
def _scores(qu, k, low, high, i, j, far, L, K, T: tl.constexpr):
    """Scores of a square, and which of them count."""
    scores = tl.dot(qu, tl.trans(k), input_precision="ieee") + _turned(low, high, T)
    return scores, _visible(i, j, far, L, K)


@triton.jit
def _far(start, i, row, L):
    """The largest distance that each query sees; -1 where there is no such query."""
    return tl.load(start + row * L + i, mask=i < L, other=-1).to(tl.int32)


@triton.jit
def _oldest(i, far, L, K):
    """The first key that one of the queries sees; it may be below 0."""
    return tl.min(tl.where(i < L, (K - L) + i - far, K), 0)


@triton.jit
def _forward(
    QU, QV, K_, V_, R, FAR, OUT, LOG_SUM, B, L, K, E: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1)  # head * B + row
    M = K - L
    first = tl.program_id(0) * T
    i = first + tl.arange(0, T)
    columns = tl.arange(0, EP)
    queries, keys = pair.to(tl.int64) * L * E, pair.to(tl.int64) * K * E
    positions = R + (pair // B).to(tl.int64) * (K + 1) * E
    qu = _rows(QU + queries, i, L, columns, E)
    qv = _rows(QV + queries, i, L, columns, E)
    far = _far(FAR, i, pair % B, L)
    # The first key that one of the queries sees, and the key after the last.
    begin = (tl.maximum(_oldest(i, far, L, K), 0) // T) * T
    end = tl.minimum(K, M + first + T)
    top = tl.full((T,), -1e30, tl.float32)
    total = tl.zeros((T,), tl.float32)
    found = tl.zeros((T, EP), tl.float32)
    high = _by_distance(qv, positions, M + first - begin, K, columns, E, T)
    for j0 in tl.range(begin, end, T):
        j = j0 + tl.arange(0, T)
        k = _rows(K_ + keys, j, K, columns, E)
        v = _rows(V_ + keys, j, K, columns, E)
        low = _by_distance(qv, positions, M + first - j0 - T, K, columns, E, T)
        scores, visible = _scores(qu, k, low, high, i, j, far, L, K, T)
        scores = tl.where(visible, scores * LOG2_E, -1e30)
        highest = tl.maximum(top, tl.max(scores, 1))
        weights = tl.where(visible, tl.exp2(scores - highest[:, None]), 0.0)
        fades = tl.exp2(top - highest)
        total = total * fades + tl.sum(weights, 1)
        found = found * fades[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = highest
        high = low
    total = tl.where(i < L, total, 1.0)
    inside = (i < L)[:, None] & (columns < E)[None, :]
    place = OUT + queries + i[:, None] * E + columns[None, :]
    tl.store(place, (found / total[:, None]).to(OUT.dtype.element_ty), mask=inside)
    tl.store(LOG_SUM + pair.to(tl.int64) * L + i, top + tl.log2(total), mask=i < L)


@triton.jit
def _backward_queries(
    QU, QV, K_, V_, R, FAR, D_OUT, LOG_SUM, LEVEL, D_QU, BY_DISTANCE, B, L, K,
    E: tl.constexpr, EP: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1)
    M = K - L
    first = tl.program_id(0) * T
    i = first + tl.arange(0, T)
    columns = tl.arange(0, EP)
    queries, keys = pair.to(tl.int64) * L * E, pair.to(tl.int64) * K * E
    positions = R + (pair // B).to(tl.int64) * (K + 1) * E
    qu = _rows(QU + queries, i, L, columns, E)
    qv = _rows(QV + queries, i, L, columns, E)
    d_out = _rows(D_OUT + queries, i, L, columns, E)
    far = _far(FAR, i, pair % B, L)
    log_sum = tl.load(LOG_SUM + pair.to(tl.int64) * L + i, mask=i < L, other=0.0)
    level = tl.load(LEVEL + pair.to(tl.int64) * L + i, mask=i < L, other=0.0)
    begin = (tl.maximum(_oldest(i, far, L, K), 0) // T) * T
    end = tl.minimum(K, M + first + T)
    d_qu = tl.zeros((T, EP), tl.float32)
    high = _by_distance(qv, positions, M + first - begin, K, columns, E, T)
    for j0 in tl.range(begin, end, T):
        j = j0 + tl.arange(0, T)
        k = _rows(K_ + keys, j, K, columns, E)
        v = _rows(V_ + keys, j, K, columns, E)
        low = _by_distance(qv, positions, M + first - j0 - T, K, columns, E, T)
        scores, visible = _scores(qu, k, low, high, i, j, far, L, K, T)
        weights = tl.where(visible, tl.exp2(scores * LOG2_E - log_sum[:, None]), 0.0)
        d_weights = tl.dot(d_out, tl.trans(v), input_precision="ieee")
        d_scores = (weights * (d_weights - level[:, None])).to(k.dtype)
        d_qu += tl.dot(d_scores, k, input_precision="ieee")
        # Column c of a query scores distance K - 1 - c.
        row = BY_DISTANCE + (pair.to(tl.int64) * L + i)[:, None] * (K + 1)
        tl.store(row + (L - 1 - i)[:, None] + j[None, :], d_scores, mask=visible)
        high = low
    inside = (i < L)[:, None] & (columns < E)[None, :]
    place = D_QU + queries + i[:, None] * E + columns[None, :]
    tl.store(place, d_qu.to(D_QU.dtype.element_ty), mask=inside)


@triton.jit
def _backward_keys(
    QU, QV, K_, V_, R, FAR, D_OUT, LOG_SUM, LEVEL, D_K, D_V, B, L, K,
    E: tl.constexpr, EP: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1)
    M = K - L
    first = tl.program_id(0) * T
    j = first + tl.arange(0, T)
    columns = tl.arange(0, EP)
    queries, keys = pair.to(tl.int64) * L * E, pair.to(tl.int64) * K * E
    positions = R + (pair // B).to(tl.int64) * (K + 1) * E
    k = _rows(K_ + keys, j, K, columns, E)
    v = _rows(V_ + keys, j, K, columns, E)
    d_k = tl.zeros((T, EP), tl.float32)
    d_v = tl.zeros((T, EP), tl.float32)
    begin = (tl.maximum(first - M, 0) // T) * T  # the first query that stands at the keys or after
    for i0 in tl.range(begin, L, T):
        i = i0 + tl.arange(0, T)
        far = _far(FAR, i, pair % B, L)
        if _oldest(i, far, L, K) < first + T:  # one of the queries sees one of the keys
            qu = _rows(QU + queries, i, L, columns, E)
            qv = _rows(QV + queries, i, L, columns, E)
            d_out = _rows(D_OUT + queries, i, L, columns, E)
            log_sum = tl.load(LOG_SUM + pair.to(tl.int64) * L + i, mask=i < L, other=0.0)
            level = tl.load(LEVEL + pair.to(tl.int64) * L + i, mask=i < L, other=0.0)
            nearest = M + i0 - first - T
            # Not _by_distance: with both loads before the products no register spills on sm_80.
            far_off = _distances(positions, nearest + T, K, columns, E, T)
            near = _distances(positions, nearest, K, columns, E, T)
            low = tl.dot(qv, tl.trans(near), input_precision="ieee")
            high = tl.dot(qv, tl.trans(far_off), input_precision="ieee")
            scores, visible = _scores(qu, k, low, high, i, j, far, L, K, T)
            weights = tl.where(visible, tl.exp2(scores * LOG2_E - log_sum[:, None]), 0.0)
            d_v += tl.dot(tl.trans(weights.to(d_out.dtype)), d_out, input_precision="ieee")
            d_weights = tl.dot(d_out, tl.trans(v), input_precision="ieee")
            d_scores = (weights * (d_weights - level[:, None])).to(qu.dtype)
            d_k += tl.dot(tl.trans(d_scores), qu, input_precision="ieee")
    inside = (j < K)[:, None] & (columns < E)[None, :]
    place = keys + j[:, None] * E + columns[None, :]
    tl.store(D_K + place, d_k.to(D_K.dtype.element_ty), mask=inside)
    tl.store(D_V + place, d_v.to(D_V.dtype.element_ty), mask=inside)
