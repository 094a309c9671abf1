"""Cross entropy of a linear layer, without ever holding all its logits.

Rows are taken in chunks; each chunk's logits live only while its losses and its part of the
gradients are formed, all in the forward pass. So a training step holds the gradients of the weight
instead of (T, V) logits and their gradient, and computes no product twice.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100  # a target that is none
# Logits of one chunk. On a CPU 16 MiB: 128 rows of 32,768 ids, the fastest of those measured.
_CHUNK_LOGITS = {"cpu": 1 << 22}
_CHUNK_LOGITS_ELSEWHERE = 1 << 26

Gradients = tuple[Tensor, Tensor, Tensor]  # of hidden, weight, bias


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Give -log softmax(hidden @ weight.T + bias)[target] of every row.

    The products follow autocast; softmax and losses are float32, or float64 for a float64 model.

    Args:
        hidden: (T, D).
        weight: (V, D).
        bias: (V,).
        targets: (T,) int64; the loss of -100 is 0 and has no gradient.

    Returns:
        (T,).
    """
    return penalized_cross_entropy(hidden, weight, bias, targets, z_loss=0.0)[0]


def penalized_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, *, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Give losses with `z_loss` * log(Z)^2 added, Z being the sum of exp(logits) of the row.

    The penalty keeps logits from drifting away together, which the softmax does not see.

    Args:
        hidden: (T, D).
        weight: (V, D).
        bias: (V,).
        targets: (T,) int64, as `linear_cross_entropy`.
        z_loss: What the penalty weighs; 0 is none.

    Returns:
        (T,) losses, the penalty in them, and (T,) penalties, which have no gradient of their own.

    Source: de Brebisson and Vincent 2016, arXiv:1604.08859; the weight as in Chowdhery et al. 2022.
    """
    device = hidden.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    wants = hidden.requires_grad or weight.requires_grad or bias.requires_grad
    if torch.is_grad_enabled() and wants:
        return _LinearCrossEntropy.apply(hidden, weight, bias, targets, product, z_loss)
    return _sweep((hidden, weight, bias), targets, product, scale=None, z_loss=z_loss)[:2]


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        product: torch.dtype | None,
        z_loss: float,
    ) -> tuple[Tensor, Tensor]:
        inputs = (hidden, weight, bias)
        even = torch.ones_like(targets, dtype=torch.float32)
        losses, penalties, ctx.gradients = _sweep(
            inputs, targets, product, scale=even, z_loss=z_loss
        )
        ctx.save_for_backward(*inputs, targets)
        ctx.mark_non_differentiable(penalties)
        ctx.product, ctx.z_loss = product, z_loss
        return losses, penalties

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        grad = grad_outputs[0]
        *inputs, targets = ctx.saved_tensors
        scale = _even_scale(grad, targets != IGNORED)
        if scale is not None:
            gradients = tuple(each * scale for each in ctx.gradients)
        else:  # rows weigh differently: what was formed does not serve
            *_, gradients = _sweep(
                tuple(inputs), targets, ctx.product, scale=grad, z_loss=ctx.z_loss
            )
        found = (g.to(x.dtype) for g, x in zip(gradients, inputs, strict=True))
        return (*found, None, None, None)


def _even_scale(grad: Tensor, real: Tensor) -> Tensor | None:
    """Give the one gradient all real rows have, as a sum or a mean gives it; else None.

    Here the host waits for the device (as it does for the cluster counts of adaptive softmax).
    """
    if not real.numel():
        return grad.new_zeros(())
    high = grad.masked_fill(~real, -torch.inf).amax()
    low = grad.masked_fill(~real, torch.inf).amin()
    if not bool(high <= low):  # nothing real: -inf and inf
        return None
    return torch.where(real.any(), high, 0.0)


@torch.no_grad()
def _sweep(
    inputs: tuple[Tensor, Tensor, Tensor],
    targets: Tensor,
    product: torch.dtype | None,
    *,
    scale: Tensor | None,
    z_loss: float,
) -> tuple[Tensor, Tensor, Gradients]:
    """Pass once over the rows in chunks.

    Args:
        inputs: hidden (T, D), weight (V, D), bias (V,).
        targets: (T,).
        product: Type of the matrix products; None takes the weight's.
        scale: (T,), what each row's loss weighs in the gradients; None forms none.
        z_loss: As `penalized_cross_entropy`.

    Returns:
        The losses (T,), the penalties in them (T,), and the gradients of the losses' scaled sum,
        empty tensors without a scale.
    """
    product = product or inputs[1].dtype
    exact = torch.float64 if product == torch.float64 else torch.float32
    hidden, weight = inputs[0].to(product), inputs[1].to(product)
    bias = inputs[2].to(exact)
    losses, penalties = (hidden.new_empty(len(targets), dtype=exact) for _ in range(2))
    d_hidden, d_weight, d_bias = (
        torch.zeros_like(x, dtype=exact) if scale is not None else x.new_empty(0)
        for x in (hidden, weight, bias)
    )
    rows = max(1, _CHUNK_LOGITS.get(hidden.device.type, _CHUNK_LOGITS_ELSEWHERE) // len(weight))
    with torch.autocast(hidden.device.type, enabled=False):
        for low in range(0, len(targets), rows):
            part = slice(low, low + rows)
            h, real = hidden[part], targets[part] != IGNORED
            target = targets[part].masked_fill(~real, 0)[:, None]
            logits = (h @ weight.mT).to(exact).add_(bias)
            of_target = logits.gather(1, target)
            log_prob = torch.log_softmax(logits, dim=1, out=logits)  # in place: fewer passes
            nll = -log_prob.gather(1, target)
            log_total = of_target + nll
            penalties[part] = (z_loss * log_total.square())[:, 0].masked_fill_(~real, 0)
            losses[part] = nll[:, 0].masked_fill_(~real, 0) + penalties[part]
            if scale is None:
                continue
            d_logits = log_prob.exp_()
            if z_loss:
                d_logits.mul_(1 + 2 * z_loss * log_total)
            d_logits.scatter_add_(1, target, torch.full_like(log_total, -1))
            d_logits.mul_((scale[part] * real)[:, None])
            d_bias += d_logits.sum(dim=0)
            d_rounded = d_logits.to(product)
            d_hidden[part] = d_rounded @ weight
            if product == exact:
                d_weight.addmm_(d_rounded.mT, h)
            else:
                d_weight += d_rounded.mT @ h
    return losses, penalties, (d_hidden, d_weight, d_bias)
