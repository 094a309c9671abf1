"""Attention in tiles that stay in a processor's cache, forward and backward by hand.

A tile is some queries of some heads of one row, with the keys up to its last query: it is a whole
attention of its own, with fewer queries, so the rule of `slide` holds in it, and keys that come
after all of its queries cost nothing. Scores never leave the cache; the weights are kept for the
backward pass, or computed again there. A row's numbers do not depend on the rows beside it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.attention import Drop, Queries, Sight, product_type, slide

# Scores of a tile. On a CPU 1 MiB, what a core's second-level cache holds, and queries as measured:
# docs/benchmarks.md.
_TILE_BYTES = {"cpu": 1 << 20}
_TILE_BYTES_ELSEWHERE = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Some queries of some heads of a row.

    Attributes:
        heads: Of the tile (X of them).
        row: Its row.
        queries: Of the tile (L of them, here).
        keys: Keys that the last of them may see: the first K of all.
    """

    heads: slice
    row: int
    queries: slice
    keys: int

    def of_queries(self, x: Tensor) -> Tensor:
        """Cut (H, B, L, E) to (X, L, E)."""
        return x[self.heads, self.row, self.queries]

    def of_keys(self, x: Tensor) -> Tensor:
        """Cut (H, B, K, E) to (X, K, E)."""
        return x[self.heads, self.row, : self.keys]

    def of_distances(self, r: Tensor) -> Tensor:
        """Cut (H, K + 1, E) to (X, K + 1, E): the nearest distances, and the spare."""
        return r[self.heads, -(self.keys + 1) :]


def tiled_attention(
    q: Queries,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    seen: Sight,
    drop: Drop | None = None,
    *,
    keep: bool,
) -> Tensor:
    """Attend in tiles; arguments and result as `plain_attention`.

    With `keep` the weights are kept for the backward pass, (H, B, L, K) of them, less those to the
    right of each tile. Else they are computed again there.
    """
    product = product_type(k)
    inputs = (_laid(x.to(product)) for x in (*q, k, v, r))
    return _Tiled.apply(*inputs, seen, drop, keep)


def _laid(x: Tensor) -> Tensor:
    """`x` with matrices of one piece, in which its last two axes lie; a copy if they do not.

    Products in bf16 with the strided keys of a projection take three times as long.
    """
    return x if x.stride()[-2:] == (x.shape[-1], 1) else x.contiguous()


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913 - as autograd wants it
        ctx: Any,
        qu: Tensor,
        qv: Tensor,
        k: Tensor,
        v: Tensor,
        r: Tensor,
        seen: Sight,
        drop: Drop | None,
        keep: bool,
    ) -> Tensor:
        H, B, L, E = qu.shape
        out = qu.new_empty(B, L, H, E).permute(2, 0, 1, 3)  # as the output projection reads it
        keep = keep and any(ctx.needs_input_grad)
        kept: list[Tensor] = []
        lost = _Lost(drop, qu, k)
        with torch.autocast(qu.device.type, enabled=False):
            for tile in _tiles(qu, k):
                weights = _weights(tile, qu, qv, k, r, seen)
                if keep:
                    kept.append(weights)
                summed = torch.bmm(lost.drop(weights, tile), tile.of_keys(v))
                tile.of_queries(out).copy_(summed)
        ctx.save_for_backward(qu, qv, k, v, r, out, *kept)
        ctx.seen, ctx.drop = seen, drop
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, d_out: Tensor
    ) -> tuple[Tensor | None, ...]:
        qu, qv, k, v, r, out, *kept = ctx.saved_tensors
        with torch.autocast(qu.device.type, enabled=False):
            found = _gradients(d_out, (qu, qv, k, v, r), out, kept, ctx.seen, ctx.drop)
        return (*found, None, None, None)


def _tiles(qu: Tensor, k: Tensor) -> Iterator[_Tile]:
    """Cut (H, B, L, E) queries of (H, B, K, E) keys, row after row."""
    H, B, L, _ = qu.shape
    K = k.shape[2]
    M = K - L
    size_bytes = _TILE_BYTES.get(qu.device.type, _TILE_BYTES_ELSEWHERE)
    queries = min(L, 64 if qu.element_size() > 2 else 128)
    heads = min(H, max(1, size_bytes // (queries * K * qu.element_size())))
    for row in range(B):
        for head in range(0, H, heads):
            for low in range(0, L, queries):
                high = min(L, low + queries)
                yield _Tile(
                    heads=slice(head, min(H, head + heads)),
                    row=row,
                    queries=slice(low, high),
                    keys=M + high,
                )


def _weights(tile: _Tile, qu: Tensor, qv: Tensor, k: Tensor, r: Tensor, seen: Sight) -> Tensor:
    """Attention weights of a tile, (X, L, K)."""
    _, B, L, _ = qu.shape
    by_distance = torch.bmm(tile.of_queries(qv), tile.of_distances(r).mT)  # (X, L, K + 1)
    hidden = seen.hidden.view(B, L, -1)[tile.row, tile.queries, -(tile.keys + 1) :]
    far = seen.far[tile.row, tile.queries]
    if far.device.type == "cpu":  # elsewhere it would be waited for
        # All queries see the distances up to the least `far`, which are the last columns but one.
        some = max(0, tile.keys - 1 - int(far.min()))
        by_distance[:, :, :some].masked_fill_(hidden[:, :some], -torch.inf)
        by_distance[:, :, -1] = -torch.inf
    else:
        by_distance.masked_fill_(hidden, -torch.inf)
    scores = torch.baddbmm(slide(by_distance), tile.of_queries(qu), tile.of_keys(k).mT)
    if scores.dtype in (torch.bfloat16, torch.float16):
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, dim=-1, out=scores)


class _Lost:
    """Which weights of a row are lost; decided once a row, for tiles come row after row."""

    def __init__(self, drop: Drop | None, qu: Tensor, k: Tensor) -> None:
        self._how = drop
        self._shape = (qu.shape[0], qu.shape[2], k.shape[2])
        self._row, self._lost = -1, qu.new_empty(0, dtype=torch.bool)

    def drop(self, x: Tensor, tile: _Tile) -> Tensor:
        """Lose a part of a tile's weights, or of their gradient, (X, L, K)."""
        if self._how is None:
            return x
        if self._row != tile.row:
            self._row, self._lost = tile.row, self._how.lost(tile.row, self._shape)
        lost = self._lost[tile.heads, tile.queries, : tile.keys]
        return (x * (1 / (1 - self._how.rate))).masked_fill_(lost, 0)


def _gradients(
    d_out: Tensor,
    inputs: tuple[Tensor, ...],
    out: Tensor,
    kept: list[Tensor],
    seen: Sight,
    drop: Drop | None,
) -> tuple[Tensor, ...]:
    """Gradients of qu, qv, k, v and r; sums over tiles are float32 at least."""
    qu, qv, k, v, r = inputs
    exact = torch.float64 if k.dtype == torch.float64 else torch.float32
    d_qu, d_qv = torch.empty_like(qu), torch.empty_like(qv)
    d_k, d_v, d_r = (torch.zeros_like(x, dtype=exact) for x in (k, v, r))
    # Of a row of scores, what its softmax takes away again: sum of weight * d_weight.
    level = (d_out.to(exact) * out).sum(dim=-1, keepdim=True)
    lost = _Lost(drop, qu, k)
    for number, tile in enumerate(_tiles(qu, k)):
        weights = kept[number] if kept else _weights(tile, qu, qv, k, r, seen)
        g = tile.of_queries(d_out)
        tile.of_keys(d_v).add_(torch.bmm(lost.drop(weights, tile).mT, g))
        d_weights = lost.drop(torch.bmm(g, tile.of_keys(v).mT), tile)  # (X, L, K)
        X, L, K = weights.shape
        by_distance = weights.new_empty(X, L * (K + 1))
        by_distance[:, : L - 1] = 0  # what `slide` leaves out
        by_distance[:, L - 1 + L * K :] = 0
        by_distance = by_distance.view(X, L, K + 1)
        d_scores = (d_weights - tile.of_queries(level)).mul_(weights).to(weights.dtype)
        slide(by_distance).copy_(d_scores)  # a copy: products of views like this one are slow
        tile.of_queries(d_qu).copy_(torch.bmm(d_scores, tile.of_keys(k)))
        tile.of_queries(d_qv).copy_(torch.bmm(by_distance, tile.of_distances(r)))
        tile.of_keys(d_k).add_(torch.bmm(d_scores.mT, tile.of_queries(qu)))
        tile.of_distances(d_r).add_(torch.bmm(by_distance.mT, tile.of_queries(qv)))
    return tuple(d.to(x.dtype) for d, x in zip((d_qu, d_qv, d_k, d_v, d_r), inputs, strict=True))
