"""Times on a device: its two ceilings, and training steps of the paper's four models."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from jobs.bench_model import Shape, work
from model.config import Backend, ModelConfig
from trainer.flops import peak_of, step_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A model of Dai et al. 2019 (its published scripts), and the rows that it is timed with."""

    name: str
    shape: Shape
    model: ModelConfig


_WORDS: dict[str, Any] = {
    "vocab_size": 267_735,
    "cutoffs": (20_000, 40_000, 200_000),
    "tie_projections": (False, True, True, True),
}
PAPER = (
    Paper(
        name="enwik8 12 layers",
        shape=Shape(rows=22, segment=512),
        model=ModelConfig(
            vocab_size=204, layers=12, width=512, heads=8, head_width=64, inner_width=2048,
            memory=512,
        ),
    ),
    Paper(
        name="enwik8 24 layers",
        shape=Shape(rows=22, segment=768),
        model=ModelConfig(
            vocab_size=204, layers=24, width=1024, heads=8, head_width=128, inner_width=3072,
            memory=768,
        ),
    ),
    Paper(
        name="WikiText-103 base",
        shape=Shape(rows=60, segment=150),
        model=ModelConfig(
            layers=16, width=410, heads=10, head_width=41, inner_width=2100, memory=150, **_WORDS
        ),
    ),
    Paper(
        name="WikiText-103 large",
        shape=Shape(rows=32, segment=384),
        model=ModelConfig(
            layers=18, width=1024, heads=16, head_width=64, inner_width=4096, memory=384,
            div_val=4, **_WORDS,
        ),
    ),
)  # fmt: skip


def small(paper: Paper) -> Paper:
    """The same shape of model, a hundredth of it: to see that everything runs."""
    model = replace(
        paper.model, layers=2, width=32, heads=2, head_width=16, inner_width=32, memory=16,
        vocab_size=min(paper.model.vocab_size, 400),
        cutoffs=(40, 80, 200) if paper.model.cutoffs else (),
        div_val=min(paper.model.div_val, 2),
    )  # fmt: skip
    return Paper(name=paper.name, shape=Shape(rows=2, segment=16), model=model)


def ceilings(
    device: torch.device, *, size: int = 8192, copy_bytes: int = 1 << 30
) -> dict[str, Any]:
    """Products in bf16 a second, and bytes read and written by a copy."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    product_s = seconds(device, lambda: torch.mm(a, b, out=out), repeats=10)
    here = torch.zeros(copy_bytes, dtype=torch.uint8, device=device)
    there = torch.empty_like(here)
    copy_s = seconds(device, lambda: there.copy_(here), repeats=10)
    return {
        "name": "ceilings",
        "ok": True,
        "bf16_flops_per_second": 2 * size**3 / product_s,
        "copied_bytes_per_second": 2 * copy_bytes / copy_s,
    }


def steps(
    device: torch.device,
    papers: tuple[Paper, ...],
    backends: tuple[Backend, ...],
    *,
    ceiling: float | None,
    repeats: int = 10,
) -> Iterator[dict[str, Any]]:
    """Training steps in bf16 without dropout, of each model by each backend.

    Args:
        device: Where.
        papers: Models.
        backends: Ways to attend.
        ceiling: Products a second as measured; the maker's stand beside it where they are known.
        repeats: Steps that are timed, after three that are not.

    Yields:
        Seconds, tokens a second, useful products a second as shares of both, and peak memory.
    """
    for paper in papers:
        model = replace(paper.model, dropout=0.0)
        useful = step_flops(model, rows=paper.shape.rows, segment=paper.shape.segment)
        for backend in backends:
            named = {"name": f"{paper.name}, {backend}", "ok": True}
            try:
                found = _timed(device, model, paper.shape, backend, repeats)
            except torch.cuda.OutOfMemoryError:
                yield named | {"out_of_memory": True}
            else:
                step_s = found["seconds"]
                made = peak_of(_name(device), precision="bf16")
                tokens = paper.shape.rows * paper.shape.segment
                yield (
                    named
                    | found
                    | {
                        "tokens_per_second": tokens / step_s,
                        "share_of_measured_peak": useful / step_s / ceiling if ceiling else None,
                        "model_flop_use": useful / step_s / made if made else None,
                    }
                )
            free(device)


def _timed(
    device: torch.device, model: ModelConfig, shape: Shape, backend: Backend, repeats: int
) -> dict[str, Any]:
    free(device)
    act = work(model, shape, precision="bf16", backend=backend, device=device).step
    found: dict[str, Any] = {"seconds": seconds(device, act, repeats=repeats, warm=3)}
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return found


def seconds(
    device: torch.device, act: Callable[[], object], *, repeats: int, warm: int = 2
) -> float:
    """Median seconds of `act`, the device's work included."""
    found: list[float] = []
    for turn in range(warm + repeats):
        settle(device)
        began_s = time.perf_counter()
        act()
        settle(device)
        if turn >= warm:
            found.append(time.perf_counter() - began_s)
    return statistics.median(found)


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free(device: torch.device) -> None:
    """Give back what torch keeps of the device's memory, and count its peak anew."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""
