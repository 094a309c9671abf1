"""A moving average of the weights: moved after each step, saved, scored in the weights' place."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def begin_average(model: nn.Module) -> list[Tensor]:
    """The average before the first step: the weights themselves, in their order."""
    return [parameter.detach().clone() for parameter in model.parameters()]


@torch.no_grad()
def move_average(average: Sequence[Tensor], model: nn.Module, *, decay: float) -> None:
    """Move `average` by 1 - decay of the way to the weights of `model`, in place."""
    for mean, parameter in zip(average, model.parameters(), strict=True):
        mean.lerp_(parameter, 1 - decay)


@contextmanager
def averaged(model: nn.Module, average: Sequence[Tensor]) -> Iterator[None]:
    """Put the average, if there is one, in the weights' place; then they are back, to the bit."""
    if not average:
        yield
        return
    kept = begin_average(model)
    _put(model, average)
    try:
        yield
    finally:
        _put(model, kept)


@torch.no_grad()
def _put(model: nn.Module, weights: Sequence[Tensor]) -> None:
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.copy_(weight)
