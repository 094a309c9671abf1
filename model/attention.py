"""Relative attention: one plain definition, and faster forms that must equal it.

Query i of a segment stands M + i - j tokens after key j. Everything here speaks of that distance:
what a query may see is a largest distance (`Sight`), and position keys `r` come by distance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sight:
    """What the queries of a segment may see, the same in every layer.

    Attributes:
        far: (B, L) int64, the largest distance each query sees; it sees 0 .. far.
        hidden: (B * L, K + 1) bool, the same by distance: column c says whether distance K - 1 - c
            is out of sight. The last column is the spare that `slide` needs, always True.
    """

    far: Tensor
    hidden: Tensor


Queries = tuple[Tensor, Tensor]  # plus u, plus v; both divided by sqrt(E): (H, B, L, E)
Drop = Callable[[Tensor], Tensor]  # of attention weights (B, H, L, K)


def sight(offset: Tensor, usable: Tensor, *, memory: int, window: int = 0) -> Sight:
    """Say what queries see: the past of their own document, as far as the row remembers it.

    Args:
        offset: (B, L) int64, tokens of its document before each query.
        usable: (B,) int64, how many of the last memory states may be read.
        memory: Memory states among the keys (M).
        window: Keys a query sees at most, its own included; 0 sets no such limit.
    """
    B, L = offset.shape
    K = memory + L
    place = torch.arange(L, device=offset.device)
    far = torch.minimum(offset, usable[:, None] + place)
    if window:
        far = far.clamp(max=window - 1)
    # Keys right of the query are raw entries of distances above M + i, and the spare; both are
    # farther than any `far`. So one comparison is the whole mask, the causal edge included.
    distance = torch.arange(K - 1, -2, -1, device=offset.device) % (K + L + 1)  # spare: K + L
    return Sight(far=far, hidden=distance > far.view(B * L, 1))


def plain_attention(
    q: Queries, k: Tensor, v: Tensor, r: Tensor, seen: Sight, drop: Drop | None = None
) -> Tensor:
    """Attend by the definition: every distance looked up, every score on its own.

    Args:
        q: Queries plus u and queries plus v, both divided by sqrt(E): (H, B, L, E) each.
        k: (H, B, K, E), keys of the memory and the segment, oldest first.
        v: (H, B, K, E), their values.
        r: (H, K + 1, E), position keys of distances K - 1, ..., 0, and a spare of any finite value.
        seen: What the queries may see.
        drop: Loses attention weights, (B, H, L, K).

    Returns:
        (H, B, L, E).

    Source: Dai et al. 2019, section 3.3.
    """
    L, K = q[0].shape[2], k.shape[2]
    query = torch.arange(L, device=k.device)[:, None]
    distance = (K - L) + query - torch.arange(K, device=k.device)  # (L, K)
    r_of_pair = r[:, :-1].flip(1)[:, distance.clamp(min=0)]  # (H, L, K, E)
    scores = torch.einsum("hble,hbke->hblk", q[0], k)
    scores = scores + torch.einsum("hble,hlke->hblk", q[1], r_of_pair)
    visible = (distance >= 0) & (distance <= seen.far[:, :, None])  # (B, L, K)
    weights = _softmax(scores.masked_fill(~visible, -torch.inf))
    return _weigh(weights, v, drop)


def dense_attention(
    q: Queries, k: Tensor, v: Tensor, r: Tensor, seen: Sight, drop: Drop | None = None
) -> Tensor:
    """Attend with three matrix products; arguments and result as `plain_attention`."""
    H, B, K, E = k.shape
    L = q[0].shape[2]
    scores = torch.baddbmm(
        _position_scores(q[1], r, seen), q[0].reshape(H * B, L, E), k.reshape(H * B, K, E).mT
    )
    weights = _softmax(scores).view(H, B, L, K)
    return _weigh(weights, v, drop)


def sdpa_attention(
    q: Queries, k: Tensor, v: Tensor, r: Tensor, seen: Sight, drop: Drop | None = None
) -> Tensor:
    """Attend with torch's fused kernel, where no gradient is wanted; as `plain_attention`."""
    if drop is not None or torch.is_grad_enabled():
        return dense_attention(q, k, v, r, seen, drop)
    H, B, K, _ = k.shape
    bias = _position_scores(q[1], r, seen).view(H, B, -1, K)
    # A bias of another type than the queries is silently wrong in some of torch's kernels.
    query, key, value = (x.to(bias.dtype) for x in (q[0], k, v))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)


def _position_scores(q: Tensor, r: Tensor, seen: Sight) -> Tensor:
    """Score every pair by distance alone; out of sight is minus infinity.

    Args:
        q: (H, B, L, E), queries plus v.
        r: (H, K + 1, E), as `plain_attention`.
        seen: What the queries may see.

    Returns:
        (H * B, L, K), a view with rows that are not contiguous.
    """
    H, B, L, E = q.shape
    by_distance = torch.bmm(q.reshape(H, B * L, E), r.mT)  # (H, B * L, K + 1)
    by_distance.masked_fill_(seen.hidden, -torch.inf)
    return slide(by_distance.view(H * B, L, -1))


def slide(by_distance: Tensor) -> Tensor:
    """Turn scores by distance into scores by key, without a copy.

    A row is one entry longer than there are keys, so reading the whole with rows of K entries from
    the right start moves each row one further left than the row above it.

    Args:
        by_distance: (X, L, K + 1); column c of a row scores distance K - 1 - c, the last is spare.

    Returns:
        (X, L, K), a view; column j scores key j. Right of the causal diagonal stand the spare and
        distances of the next row that lie before its first key.
    """
    X, L, columns = by_distance.shape
    K = columns - 1
    return by_distance.reshape(X, L * columns)[:, L - 1 : L - 1 + L * K].view(X, L, K)


def _weigh(weights: Tensor, v: Tensor, drop: Drop | None) -> Tensor:
    """Sum values by weights (H, B, L, K), some lost; noise is drawn for (B, H, L, K)."""
    if drop is not None:
        weights = drop(weights.transpose(0, 1)).transpose(0, 1)
    return torch.matmul(weights.to(v.dtype), v)


def _softmax(scores: Tensor) -> Tensor:
    half = scores.dtype in (torch.bfloat16, torch.float16)
    return torch.softmax(scores, dim=-1, dtype=torch.float32 if half else None)
