"""Losses summed up by offset in the document: float64 nats and whole counts."""

from dataclasses import dataclass

import torch
from torch import Tensor

NUM_BUCKETS = 40  # by powers of two of the offset: more than any document is long


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """What some rows add to an evaluation, by bucket of the offset, on the host.

    Attributes:
        nats: (NUM_BUCKETS,) float64.
        targets: (NUM_BUCKETS,) int64.
    """

    nats: Tensor
    targets: Tensor


def no_sums() -> Sums:
    """The sums of no rows."""
    return Sums(
        nats=torch.zeros(NUM_BUCKETS, dtype=torch.float64),
        targets=torch.zeros(NUM_BUCKETS, dtype=torch.int64),
    )


def add(sums: Sums, *, nll: Tensor, offset: Tensor, real: Tensor) -> int:
    """Add losses in place; give how many targets they are of.

    Args:
        sums: Added to.
        nll: (B, L) losses.
        offset: (B, L), of the inputs they are of.
        real: (B, L) bool, False in pads.
    """
    bucket = bucket_of_offset(offset[real]).cpu()
    sums.nats.add_(torch.bincount(bucket, weights=nll[real].double().cpu(), minlength=NUM_BUCKETS))
    sums.targets.add_(torch.bincount(bucket, minlength=NUM_BUCKETS))
    return len(bucket)


def bucket_of_offset(offset: Tensor) -> Tensor:
    """The bucket of each offset: 0 for 0, else 1 + floor(log2(offset)), exact for any int64."""
    bucket = torch.zeros_like(offset)
    for power in range(NUM_BUCKETS - 1):
        bucket += offset >= (1 << power)
    return bucket
