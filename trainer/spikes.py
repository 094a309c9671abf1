"""The spike guard: an update far above the usual is skipped, decided on the device.

The usual gradient norm is a moving mean over the steps so far. The norm is that of the summed
gradient, the same on every rank, and so is the decision: nobody needs to be asked.
"""

import torch
from torch import Tensor

FEWEST = 20  # norms before any of them can be called unusual
SHARE = 0.02  # of a new norm in the mean, once there are many


def judge(norm: Tensor, seen: Tensor, *, factor: float) -> tuple[Tensor, Tensor]:
    """Whether a step is usual, and what is usual after it.

    Args:
        norm: () float32, gradient norm of all ranks before clipping.
        seen: (2,) float64, mean norm and number of norms in it.
        factor: What is above this times the mean is a spike; 0 calls none so.

    Returns:
        () bool, False where the update is to be skipped, not finite ones too; and `seen` after. A
        spike enters it as the largest usual norm would: a lasting change is followed in the end.
    """
    finite = torch.isfinite(norm)
    if factor == 0:
        return finite, seen
    mean, count = seen[0], seen[1]
    limit = torch.where(count < FEWEST, torch.inf, factor * mean)
    taken = torch.minimum(norm.double(), limit)
    share = torch.clamp(1 / (count + 1), min=SHARE)
    after = torch.stack([mean + share * (taken - mean), count + 1])
    return finite & (norm <= limit), torch.where(finite, after, seen)
