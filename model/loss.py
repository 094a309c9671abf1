"""Losses added up so that sums of parts make the sum of the whole."""

import torch
from torch import Tensor

from model.cross_entropy import IGNORED


def loss_sum(nll: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Add up the losses of real targets.

    Args:
        nll: (B, L), 0 where there is no target.
        targets: (B, L) int64, -100 where there is none.

    Returns:
        Their sum, float64, and their count, int64: both scalars on the device.
    """
    return nll.sum(dtype=torch.float64), (targets != IGNORED).sum()
