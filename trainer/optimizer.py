"""AdamW and the learning rate, a pure function of the step."""

import math

import torch
from torch import nn

from trainer.settings import OptimizerSettings


def learning_rate(step: int, settings: OptimizerSettings, *, steps: int) -> float:
    """The learning rate of step `step`.

    Rises linearly from settings.learning_rate / warmup_steps to the peak, then follows
    `settings.schedule`. Cosine and line count from the end of the warm-up, so the two meet (the
    reference counts its cosine from step 0, and its rate drops where they join).

    Args:
        step: Step about to be taken, from 0.
        settings: Peak, warm-up, schedule and final ratio.
        steps: Steps of the whole run; inverse square root and constant do not look at it.
    """
    peak, floor = settings.learning_rate, settings.final_ratio
    ends = settings.schedule in ("cosine", "linear")
    warmup = min(settings.warmup_steps, steps) if ends else settings.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if settings.schedule == "constant":
        return peak
    if settings.schedule == "inverse_sqrt":  # 1 at the last step of the warm-up
        return peak * math.sqrt(max(1, warmup) / (step + 1))
    progress = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
    falls = progress if settings.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * progress))
    return peak * (1 - (1 - floor) * falls)


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether a weight of TransformerXL decays: tables of tokens, u, v, gains, biases do not."""
    tables = ("embedding.tables.", "softmax.tables.", "softmax.cluster_table")
    return parameter.ndim > 1 and not name.startswith(tables) and not name.endswith("_bias")


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW over the weights of a TransformerXL; those that `decays` names decay.

    The fused form is used everywhere because it alone takes `found_inf`: a step is skipped on the
    device, with no wait for the host to look at the gradient.
    """
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (decayed if decays(name, parameter) else free).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=True,
    )
