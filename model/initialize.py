"""The weights at the start."""

import torch
from torch import nn

from model.config import ModelConfig


@torch.no_grad()
def initialize(model: nn.Module, config: ModelConfig, *, seed: int) -> None:
    """Draw the weights as published: normal, gains about 1, linear and norm biases 0.

    Source: Dai et al. 2019, the published training script.
    """
    source = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            value = torch.empty(weight.shape).normal_(1.0, config.init_std, generator=source)
        elif name.endswith((".bias", "cluster_bias")) or "softmax.biases" in name:
            value = torch.zeros(weight.shape)
        else:
            spread = config.proj_init_std if ".projections." in name else config.init_std
            value = torch.empty(weight.shape).normal_(0.0, spread, generator=source)
        weight.copy_(value)
