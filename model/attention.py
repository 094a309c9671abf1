"""Relative attention: what a query may see, how weights are lost, and the plain definition.

Query i of a segment stands M + i - j tokens after key j. Everything here speaks of that distance:
what a query may see is a largest distance (`Sight`), and position keys `r` come by distance. The
faster forms (attention_whole.py, attention_tiled.py, attention_triton.py) must equal the plain one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.noise import Noise, drop


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drop:
    """How attention weights are lost.

    Attributes:
        rate: Part that is lost.
        noise: Decides which.
        site: Number of the place in the model.
    """

    rate: float
    noise: Noise
    site: int

    def whole(self, weights: Tensor) -> Tensor:
        """Lose a part of (H, B, L, K)."""
        return drop(weights.transpose(0, 1), self.rate, self.noise, self.site).transpose(0, 1)

    def lost(self, row: int, shape: tuple[int, int, int]) -> Tensor:
        """Say which weights (H, L, K) of one row are lost: the same decisions, bool."""
        noise = Noise(
            seed=self.noise.seed, step=self.noise.step, rows=self.noise.rows[row : row + 1]
        )
        return noise.dropped(self.site, (1, *shape), self.rate)[0]


Attention = Callable[[Queries, Tensor, Tensor, Tensor, Sight, Drop | None], Tensor]


def product_type(x: Tensor) -> torch.dtype:
    """The type in which products with `x` are taken: its own, or that of autocast."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


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
        drop: Loses attention weights; None loses none.

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
    weights = softmax(scores.masked_fill(~visible, -torch.inf))
    return weigh(weights, v, drop)


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


def weigh(weights: Tensor, v: Tensor, drop: Drop | None) -> Tensor:
    """Sum values by weights (H, B, L, K), some of them lost."""
    if drop is not None:
        weights = drop.whole(weights)
    return torch.matmul(weights.to(v.dtype), v)


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the keys, in float32 for scores of half precision."""
    half = scores.dtype in (torch.bfloat16, torch.float16)
    return torch.softmax(scores, dim=-1, dtype=torch.float32 if half else None)
