"""Small models whose every part matters, and rows of documents for them to read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from model.config import Backend, ModelConfig
from model.memory import Memory, empty_memory
from model.noise import Noise
from model.transformer_xl import TransformerXL

V = 23
torch.set_num_threads(1)

# Every option that changes what is computed; a property that holds, holds for all of them.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"pre_norm": True},
    {"pre_norm": True, "final_norm": False, "untie_r": True},
    {"clamp_len": 3, "heads": 3, "head_width": 3},
    {"cutoffs": (5, 12), "div_val": 2, "tie_projections": (False, True, True)},
]


def small_config(**changes: Any) -> ModelConfig:
    """A config of a few hundred weights."""
    sizes = {"vocab_size": V, "layers": 2, "width": 12, "heads": 2, "head_width": 5}
    return ModelConfig(**{**sizes, "inner_width": 10, "memory": 6, "dropout": 0.0, **changes})


def small_model(
    *, dtype: torch.dtype = torch.float64, backend: Backend = "auto", **changes: Any
) -> TransformerXL:
    """A model with weights far from its start, so that no part of it is nearly nothing."""
    config = small_config(**changes)
    model = TransformerXL(config, backend=backend).to(dtype)
    source = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.empty_like(weight).normal_(0, 0.4, generator=source))
    return model


@lru_cache
def shared_model(option: int) -> TransformerXL:
    """One of OPTIONS, made once: nobody may change it."""
    return small_model(**OPTIONS[option]).requires_grad_(False)


options = st.integers(0, len(OPTIONS) - 1)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What some rows read: tokens and offsets, (B, T)."""

    tokens: Tensor
    offset: Tensor

    def columns(self, low: int, high: int) -> "Stream":
        return Stream(tokens=self.tokens[:, low:high], offset=self.offset[:, low:high])

    def rows(self, rows: Sequence[int]) -> "Stream":
        return Stream(tokens=self.tokens[list(rows)], offset=self.offset[list(rows)])


@st.composite
def streams(draw: st.DrawFn, *, rows: int = 3, length: int = 14) -> Stream:
    """Rows of documents of any lengths; the first may have begun earlier."""
    B = draw(st.integers(1, rows))
    T = draw(st.integers(2, length))
    lines = []
    for _ in range(B):
        line = list(range(start := draw(st.sampled_from([0, 0, 1, 50])), start + T))
        for begin in draw(st.lists(st.integers(1, T - 1), max_size=3)):
            line[begin:] = range(T - begin)
        # a later cut may have been overwritten by an earlier one: offsets stay legal either way
        lines.append(line)
    seed = draw(st.integers(0, 2**31))
    tokens = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))
    return Stream(tokens=tokens, offset=torch.tensor(lines))


def cuts_of(length: int) -> st.SearchStrategy[list[int]]:
    """Where to cut `length` tokens into segments: ascending, ends included."""
    inner = st.sets(st.integers(1, length - 1)) if length > 1 else st.just(set[int]())
    return inner.map(lambda cuts: [0, *sorted(cuts), length])


def fresh(model: TransformerXL, rows: int, length: int | None = None) -> Memory:
    dtype = model.content_bias.dtype
    return empty_memory(model.config, rows, length=length, dtype=dtype)


def random_memory(model: TransformerXL, rows: int, length: int, *, seed: int = 0) -> Memory:
    """A full memory of a past nobody read."""
    empty = fresh(model, rows, length)
    source = torch.Generator().manual_seed(seed)
    return Memory(
        states=torch.empty_like(empty.states).normal_(generator=source),
        usable=torch.full_like(empty.usable, length),
    )


def read(
    model: TransformerXL,
    stream: Stream,
    memory: Memory,
    cuts: Sequence[int] | None = None,
    noise: Noise | None = None,
) -> tuple[Tensor, Memory]:
    """Read a stream in segments; give all hidden states and the last memory."""
    cuts = cuts or [0, stream.tokens.shape[1]]
    parts = []
    for low, high in pairwise(cuts):
        part = stream.columns(low, high)
        hidden, memory = model(part.tokens, part.offset, memory, noise)
        parts.append(hidden)
    return torch.cat(parts, dim=1), memory


def same(found: Tensor, wanted: Tensor, *, close: float = 1e-11) -> None:
    torch.testing.assert_close(found, wanted, rtol=close, atol=close)
