"""Attention by products of whole matrices, and by torch's fused kernel where that is exact."""

import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention import Drop, Queries, Sight, slide, softmax, weigh

# What torch's kernels for GPUs want of head width and keys; not run on one so far.
_ALIGN = (8, 16)


def whole_attention(
    q: Queries, k: Tensor, v: Tensor, r: Tensor, seen: Sight, drop: Drop | None = None
) -> Tensor:
    """Attend with three matrix products; arguments and result as `plain_attention`."""
    H, B, K, E = k.shape
    L = q[0].shape[2]
    scores = torch.baddbmm(
        _position_scores(q[1], r, seen), q[0].reshape(H * B, L, E), k.reshape(H * B, K, E).mT
    )
    weights = softmax(scores).view(H, B, L, K)
    return weigh(weights, v, drop)


def sdpa_attention(
    q: Queries, k: Tensor, v: Tensor, r: Tensor, seen: Sight, drop: Drop | None = None
) -> Tensor:
    """Attend with torch's fused kernel, where no gradient is wanted; as `plain_attention`."""
    if drop is not None or torch.is_grad_enabled():
        return whole_attention(q, k, v, r, seen, drop)
    H, B, K, _ = k.shape
    bias = _position_scores(q[1], r, seen).view(H, B, -1, K)
    # A bias of another type than the queries is silently wrong in some of torch's kernels.
    query, key, value = (x.to(bias.dtype) for x in (q[0], k, v))
    return fused(query, key, value, bias, align=_ALIGN if k.is_cuda else (1, 1))


def fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *, align: tuple[int, int]) -> Tensor:
    """Weigh v (H, B, K, E) by the softmax of q k + bias (H, B, L, K), in torch's fused kernel.

    Args:
        q: (H, B, L, E).
        k: (H, B, K, E).
        v: As k.
        bias: Minus infinity where a key is out of sight.
        align: Head width and number of keys are filled up to multiples of these, with nothing that
            is seen: else a kernel is not taken (E) or copies the bias (K).
    """
    E, wide, more = q.shape[3], -q.shape[3] % align[0], -k.shape[2] % align[1]
    if wide or more:
        q, k, v = F.pad(q, (0, wide)), *(F.pad(x, (0, wide, 0, more)) for x in (k, v))
        bias = F.pad(bias, (0, more), value=-torch.inf)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    return out[..., :E] if wide else out


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
