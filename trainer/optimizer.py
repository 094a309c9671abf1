"""AdamW and the learning rate, a pure function of the step."""

import math

import torch
from torch import nn

from trainer.settings import OptimizerSettings


def learning_rate(step: int, settings: OptimizerSettings, *, steps: int) -> float:
    """The learning rate of step `step`.

    Rises linearly from settings.learning_rate / warmup_steps to the peak, then falls along half a
    cosine to `final_ratio` of it at the last step. The cosine counts from the end of the warm-up,
    so the two meet (the reference counts it from step 0, and its rate drops where they join).

    Args:
        step: Step about to be taken, from 0.
        settings: Peak, warm-up and final ratio.
        steps: Steps of the whole run.
    """
    warmup = min(settings.warmup_steps, steps)
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
    floor = settings.final_ratio
    return settings.learning_rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


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
