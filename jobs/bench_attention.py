"""Attention alone: time against L (M + L) D, and what a memory takes, counted and seen."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from jobs.bench_timing import Say, in_turns, machine, peak, ratio, share, spread
from model.attention import sight
from model.backends import attention_of
from model.config import Backend, ModelConfig
from model.memory import empty_memory
from model.reach import reach_of
from model.recall import Recall
from model.transformer_xl import TransformerXL
from trainer.heap import keep_heap


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size: rows, segment and memory."""

    rows: int
    segment: int
    memory: int


POINTS = tuple(
    Point(rows=2, segment=segment, memory=memory)
    for segment in (128, 256, 512)
    for memory in (0, 256, 512, 1024)
)
COMPARED: tuple[Backend, ...] = ("auto", "chunked", "sdpa")


def measure_attention(
    *,
    points: tuple[Point, ...] = POINTS,
    heads: int = 8,
    head_width: int = 64,
    repeats: int = 3,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Time attention, forward and backward, in float32, and fit seconds to L (M + L) D.

    Args:
        points: Sizes; the fit needs two or more.
        heads: H.
        head_width: E.
        repeats: Of every measurement.
        say: Told what is being measured.
    """
    keep_heap()
    highest = peak("fp32")
    figures: list[dict[str, Any]] = []
    for point in points:
        say(f"attention with L = {point.segment}, M = {point.memory}")
        works = {
            backend: _work(point, backend, heads=heads, head_width=head_width)
            for backend in COMPARED
        }
        found = in_turns(works, repeats=repeats)
        scores = point.segment * point.memory + point.segment * (point.segment + 1) / 2
        useful = 2 * 9 * scores * point.rows * heads * head_width
        time_s = spread(found["auto"])
        figures.append(
            {
                "name": "attention",
                **asdict(point),
                "seconds": time_s.median,
                "beside": "peak",
                **share(useful, time_s, highest),
                **{
                    f"{other}_by_auto": ratio(found[other], found["auto"]) for other in COMPARED[1:]
                },
            }
        )
    size = heads * head_width
    sizes = [p.rows * p.segment * (p.memory + p.segment) * size for p in points]
    return {
        "machine": machine(),
        "peaks": {"fp32": highest},
        "repeats": repeats,
        "figures": figures,
        "fit": fit(sizes, [figure["seconds"] for figure in figures]),
        "memory": memory_bytes(heads=heads, head_width=head_width),
    }


def fit(sizes: list[int], seconds: list[float]) -> dict[str, float]:
    """Fit seconds = size * c, by least squares of the relative error.

    Returns:
        `seconds_per_unit`, and how far the points lie from the line: `worst`, the largest factor,
        and `exponent`, the slope in logarithms, which is 1 where the time is linear in the size.
    """
    shares = [time / size for time, size in zip(seconds, sizes, strict=True)]
    constant = sum(shares) / sum(share**2 for share in shares)  # of 1 / c
    logs = [(math.log(size), math.log(time)) for size, time in zip(sizes, seconds, strict=True)]
    middle = [sum(column) / len(logs) for column in zip(*logs, strict=True)]
    across = sum((x - middle[0]) ** 2 for x, _ in logs)
    slope = sum((x - middle[0]) * (y - middle[1]) for x, y in logs) / across if across else 0.0
    return {
        "seconds_per_unit": 1 / constant,
        "worst": max(max(share * constant, 1 / (share * constant)) for share in shares),
        "exponent": slope,
    }


def memory_bytes(
    *, heads: int, head_width: int, layers: int = 4, rows: int = 2, length: int = 256
) -> dict[str, int]:
    """What a row remembers: N M D bytes of hidden states, and the projected cache in their place.

    Returns:
        `counted`, N * B * M * D * bytes; `states`, the tensor's own size; `projected`, the keys and
        values that evaluation and generation keep, room to slide included; and the sizes.
    """
    width = heads * head_width
    config = ModelConfig(
        vocab_size=16, layers=layers, width=width, heads=heads, head_width=head_width,
        inner_width=8, memory=length,
    )  # fmt: skip
    memory = empty_memory(config, rows)
    recall = Recall(TransformerXL(config), rows, reach_of(config, length))
    recall.read(
        torch.zeros((rows, 1), dtype=torch.int64), torch.zeros((rows, 1), dtype=torch.int64)
    )
    return {
        "layers": layers,
        "rows": rows,
        "length": length,
        "width": width,
        "counted": layers * rows * length * width * memory.states.element_size(),
        "states": memory.states.untyped_storage().nbytes(),
        "projected": recall.size_bytes,
    }


def _work(point: Point, backend: Backend, *, heads: int, head_width: int) -> Any:
    rows, queries, keys = point.rows, point.segment, point.memory + point.segment
    source = torch.Generator().manual_seed(0)
    sizes = [(heads, rows, length, head_width) for length in (queries, queries, keys, keys)]
    inputs: list[Tensor] = [
        (torch.randn(size, generator=source) / head_width**0.25).requires_grad_()
        for size in [*sizes, (heads, keys + 1, head_width)]
    ]
    seen = sight(
        torch.full((rows, queries), keys), torch.full((rows,), point.memory), memory=point.memory
    )
    attend = attention_of(backend, device=torch.device("cpu"), grad=True)
    grad = torch.ones(sizes[0])

    def act() -> None:
        qu, qv, k, v, r = inputs
        torch.autograd.grad(attend((qu, qv), k, v, r, seen, None), inputs, grad)

    return act
