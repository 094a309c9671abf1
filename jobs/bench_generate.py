"""Generation, a token at a time: projected keys and values beside our own hidden-state path."""

from dataclasses import replace
from typing import Any

import torch

from jobs.bench_timing import Say, in_turns, machine, ratio, spread
from model.config import ModelConfig
from model.memory import Memory, empty_memory
from model.reach import Reach
from model.recall import Recall
from model.transformer_xl import TransformerXL

MODEL = ModelConfig(
    vocab_size=256, layers=4, width=512, heads=8, head_width=64, inner_width=2048, dropout=0.0
)
LENGTHS = (128, 1600, 3800)
_PIECE = 256


def measure_generate(
    *,
    lengths: tuple[int, ...] = LENGTHS,
    config: ModelConfig = MODEL,
    rows: int = 1,
    tokens: int = 8,
    repeats: int = 5,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Read `tokens` tokens, one at a time, with a memory that is full, both ways.

    Args:
        lengths: Memory lengths (M).
        config: Of the model.
        rows: Prompts at once.
        tokens: Read in a turn.
        repeats: Of every measurement.
        say: Told what is being measured.
    """
    figures: list[dict[str, Any]] = []
    for length in lengths:
        say(f"generation with M = {length:,}")
        model = TransformerXL(replace(config, memory=length))
        found = in_turns(_works(model, length, rows=rows, tokens=tokens), repeats=repeats)
        each = spread(found["projected"])
        figures.append(
            {
                "name": "generation",
                "memory": length,
                "rows": rows,
                "seconds_per_token": each.median / tokens,
                "beside": "hidden states",
                **ratio(found["hidden states"], found["projected"]),
            }
        )
    return {"machine": machine(), "repeats": repeats, "figures": figures}


def _works(model: TransformerXL, length: int, *, rows: int, tokens: int) -> dict[str, Any]:
    reach = Reach(memory=length)
    recall = Recall(model, rows, reach)
    for low in range(0, length, _PIECE):
        size = (rows, min(_PIECE, length - low))
        recall.read(
            torch.zeros(size, dtype=torch.int64), torch.arange(low, low + size[1]).expand(size)
        )
    empty = empty_memory(model.config, rows, length=length)
    memory = Memory(
        states=torch.randn(empty.states.shape), usable=torch.full_like(empty.usable, length)
    )
    token = torch.zeros((rows, 1), dtype=torch.int64)
    at = [length]

    def projected() -> None:
        for _ in range(tokens):
            recall.read(token, torch.full((rows, 1), at[0]))
            at[0] += 1

    @torch.no_grad()
    def hidden_states() -> None:
        after = memory
        for step in range(tokens):
            _, after = model(token, torch.full((rows, 1), length + step), after, reach=reach)

    return {"projected": projected, "hidden states": hidden_states}
