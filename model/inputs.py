"""What a segment must look like before the model reads it."""

import torch
from torch import Tensor

from model.config import ModelConfig, ModelError
from model.memory import Memory


def check_memory(config: ModelConfig, memory: Memory) -> None:
    """Refuse a memory of another model."""
    states, usable = list(memory.states.shape), list(memory.usable.shape)
    fits = len(states) == 4 and states[0] == config.layers and states[3] == config.width
    if not fits or usable != states[1:2]:
        raise ModelError(
            f"The memory's states are {states} and its usable {usable}; wanted (N, B, M, D) with "
            f"N = {config.layers} and D = {config.width}, and (B,): make it with empty_memory of "
            "this config."
        )


def check_segment(config: ModelConfig, tokens: Tensor, offset: Tensor, *, rows: int) -> None:
    """Refuse a segment that does not fit.

    Values are looked at on a CPU only: elsewhere a look would make the host wait, and under
    torch.compile it would break the graph.
    """
    if tokens.ndim != 2 or tokens.shape != offset.shape or tokens.shape[0] != rows:
        raise ModelError(
            f"Tokens are {list(tokens.shape)}, offsets {list(offset.shape)}, and the memory has "
            f"{rows} rows; wanted (B, L) twice with that B."
        )
    if tokens.shape[1] == 0:
        raise ModelError("The segment is empty; wanted at least one token a row.")
    if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_values(config, tokens, offset)


def _check_values(config: ModelConfig, tokens: Tensor, offset: Tensor) -> None:
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= config.vocab_size:
        raise ModelError(
            f"Token id {low if low < 0 else high} is not in the vocabulary of "
            f"{config.vocab_size:,}: the tokens were made with another tokenizer than the model."
        )
    follows = (offset[:, 1:] == offset[:, :-1] + 1) | (offset[:, 1:] == 0)
    good = follows.all(dim=1) & (offset[:, 0] >= 0)
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        raise ModelError(
            f"The offsets of row {row} are {offset[row].tolist()}: an offset is 0, or one more "
            "than the one before it, for a row reads whole documents in order."
        )
