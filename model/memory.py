"""What the rows remember: hidden states given to a forward pass and returned by it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.config import ModelConfig, require


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memory:
    """The last inputs of every layer, for every row; never part of a graph.

    Attributes:
        states: (N, B, M, D), oldest first, always finite: a NaN would pass through any mask, for
            0 * NaN is NaN.
        usable: (B,) int64, how many of a row's last states may be read.
    """

    states: Tensor
    usable: Tensor

    @property
    def length(self) -> int:
        """States a layer keeps for a row (M)."""
        return self.states.shape[2]

    def rows(self, low: int, high: int) -> "Memory":
        """The memory of rows low .. high - 1 (a view)."""
        return Memory(states=self.states[:, low:high], usable=self.usable[low:high])

    def resized(self, length: int) -> "Memory":
        """The same memory with room for `length` states: its last ones, or zeros before them."""
        N, B, M, D = self.states.shape
        kept = self.states[:, :, M - min(M, length) :]
        room = self.states.new_zeros(N, B, length - kept.shape[2], D)
        return Memory(
            states=torch.cat([room, kept], dim=2), usable=self.usable.clamp(max=min(M, length))
        )


def empty_memory(
    config: ModelConfig,
    rows: int,
    *,
    length: int | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Memory:
    """Memory of rows that have read nothing: zeros, none of them usable.

    Args:
        config: Of the model that will read it.
        rows: Rows (B).
        length: States to keep (M); None takes `config.memory`.
        device: Where the model is.
        dtype: Of the model's weights.
    """
    M = config.memory if length is None else length
    require(M >= 0, f"A memory of {M} states was asked for: give 0 or more.")
    return Memory(
        states=torch.zeros(config.layers, rows, M, config.width, device=device, dtype=dtype),
        usable=torch.zeros(rows, device=device, dtype=torch.int64),
    )


def join(memories: Sequence[Memory]) -> Memory:
    """Put the rows of several memories of one length under one another."""
    return Memory(
        states=torch.cat([memory.states for memory in memories], dim=1),
        usable=torch.cat([memory.usable for memory in memories]),
    )


@torch.no_grad()
def remember(memory: Memory, new: Sequence[Tensor], *, length: int) -> Memory:
    """Move a segment's states into the memory.

    A row whose new states are not all finite forgets: zeros, none usable. The device decides; the
    host never waits for it.

    Args:
        memory: What the segment's queries could read; of any length.
        new: For each layer its input, (B, L, D).
        length: States to keep (M).

    Returns:
        A memory of `length` states that shares nothing with `memory` or `new`.
    """
    N, B, M, D = memory.states.shape
    L = new[0].shape[1]
    fresh = min(L, length)  # states that come from the segment
    kept = min(M, length - fresh)  # states that stay
    empty = length - fresh - kept
    states = memory.states.new_empty(N, B, length, D)
    states[:, :, :empty] = 0
    states[:, :, empty : empty + kept] = memory.states[:, :, M - kept :]
    finite = torch.ones(B, dtype=torch.bool, device=states.device)
    for layer, level in enumerate(new):
        states[layer, :, empty + kept :] = level[:, L - fresh :]
        finite &= level.isfinite().all(dim=2).all(dim=1)
    states.masked_fill_(~finite.view(1, B, 1, 1), 0)
    usable = (memory.usable + L).clamp(max=length)
    return Memory(states=states, usable=usable.masked_fill(~finite, 0))
