"""Evaluation with a long context: reading on with a memory, beside a window slid over the text.

A Transformer without memory that shall see `length` tokens before each target computes its window
anew for every token (Al-Rfou et al. 2018); a memory is read on from. It is Table 9 of Dai et al.
2019, with a window of the same size computed as well as torch can.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention

from jobs.bench_timing import Say, in_turns, machine, ratio, spread
from model.config import ModelConfig
from model.reach import Reach
from model.recall import Recall
from model.transformer_xl import TransformerXL

LENGTHS = (800, 1800, 2800, 3800)


class Window(nn.Module):
    """A Transformer without memory of a config's size: positions are learned, heads are fused."""

    def __init__(self, config: ModelConfig, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Parameter(torch.randn(length, config.width) * 0.02)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocab_size)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Nats of the last target of each window, (B,), from tokens (B, length)."""
        x = self.embedding(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        return cross_entropy(self.head(x[:, -1]), targets, reduction="none")


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inside = config.heads * config.head_width
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * inside, bias=False)
        self.out = nn.Linear(inside, config.width, bias=False)
        self.inner = nn.Linear(config.width, config.inner_width)
        self.outer = nn.Linear(config.inner_width, config.width)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.norms[0](x + self.out(seen.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.outer(relu(self.inner(x))))


def measure_windows(
    *,
    lengths: tuple[int, ...] = LENGTHS,
    config: ModelConfig,
    segment: int = 256,
    repeats: int = 5,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Score text with `length` tokens in sight, both ways: how many times faster a memory is.

    Args:
        lengths: Tokens that each target is scored with: M here, the window there.
        config: Of both models.
        segment: Tokens that are read at once (L) with the memory.
        repeats: Of every measurement.
        say: Told what is being measured.
    """
    figures: list[dict[str, Any]] = []
    for length in lengths:
        say(f"evaluation with {length:,} tokens in sight")
        found = in_turns(_works(config, length, segment=segment), repeats=repeats)
        ours = [seconds / segment for seconds in found["memory"]]
        figures.append(
            {
                "name": "evaluation",
                "segment": segment,
                "memory": length,
                "seconds_per_token": spread(ours).median,
                "beside": "a window slid over the text",
                **ratio(found["window"], ours),
            }
        )
    return {"machine": machine(), "repeats": repeats, "figures": figures}


def _works(config: ModelConfig, length: int, *, segment: int) -> dict[str, Any]:
    model = TransformerXL(replace(config, memory=length)).eval()
    window = Window(config, length).eval()
    recall = Recall(model, 1, Reach(memory=length))
    tokens = torch.randint(config.vocab_size, (1, length + 1))
    at = [0]

    @torch.inference_mode()
    def memory() -> None:
        low = at[0] % (length - segment + 1)
        offset = torch.arange(at[0], at[0] + segment)[None]
        hidden = recall.read(tokens[:, low : low + segment], offset)
        model.nll(hidden, tokens[:, low + 1 : low + 1 + segment])
        at[0] += segment

    @torch.inference_mode()
    def slid() -> None:
        window(tokens[:, :-1], tokens[:, -1])

    while at[0] < length:  # until the memory is full
        memory()
    return {"memory": memory, "window": slid}
