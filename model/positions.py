"""Position vectors of distances."""

import torch
from torch import Tensor


def distance_vectors(
    count: int, width: int, *, clamp_len: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Make the vectors of distances count - 1, ..., 1, 0, and a spare row of zeros.

    Angles are made in float64: bfloat16 holds no integer above 256, and float32 loses the phase of
    far distances.

    Args:
        count: Distances (K).
        width: Of a vector (D).
        clamp_len: Distances above it count as it; 0 never clamps.
        device: Where to make them.
        dtype: What to round them to.

    Returns:
        (K + 1, D): all sines, then all cosines.

    Source: Dai et al. 2019, section 3.3; Vaswani et al. 2017 for the wave lengths.
    """
    distance = torch.arange(count - 1, -1, -1, device=device, dtype=torch.float64)
    if clamp_len:
        distance = distance.clamp(max=clamp_len)
    even = torch.arange(0, width, 2, device=device, dtype=torch.float64)
    angle = distance[:, None] * 10_000 ** (-even / width)  # (K, D / 2)
    vectors = torch.cat([angle.sin(), angle.cos()], dim=1)
    return torch.cat([vectors, vectors.new_zeros(1, width)]).to(dtype)
