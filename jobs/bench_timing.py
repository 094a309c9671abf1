"""How a bench measures: in turns, by the clock, with the machine's own peaks beside it."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Say = Callable[[str], None]
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Seconds of one piece of work over the repeats."""

    median: float
    lowest: float
    highest: float


def in_turns(
    works: Mapping[str, Callable[[], object]], *, repeats: int, say: Say = lambda _: None
) -> dict[str, list[float]]:
    """Do each work `repeats` times, one after the other, so that a busy machine weighs on all.

    Returns:
        Seconds of each, in order; a first round for the caches is not among them.
    """
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        say(f"turn {turn} of {repeats}: {', '.join(works)}")
        for name, work in works.items():
            began_s = time.perf_counter()
            work()
            if turn:
                found[name].append(time.perf_counter() - began_s)
    return found


def spread(seconds: list[float]) -> Spread:
    """Median, lowest and highest."""
    return Spread(median=statistics.median(seconds), lowest=min(seconds), highest=max(seconds))


def ratio(ours: list[float], other: list[float]) -> dict[str, float]:
    """Ours by the other, turn by turn: median, lowest and highest."""
    each = spread([own / theirs for own, theirs in zip(ours, other, strict=True)])
    return {"ratio": each.median, "lowest": each.lowest, "highest": each.highest}


def share(useful: float, seconds: Spread, highest: float) -> dict[str, float]:
    """Of `highest` operations a second, what `useful` ones in `seconds` are, from the slowest."""
    return {
        "ratio": useful / seconds.median / highest,
        "lowest": useful / seconds.highest / highest,
        "highest": useful / seconds.lowest / highest,
    }


def precisions() -> tuple[str, ...]:
    """fp32, and bf16 where the processor multiplies it itself: else it is only emulated."""
    capability: Any = torch.backends.cpu.get_cpu_capability()
    own = {"avx512_bf16", "amx_bf16"} & set(_told_by_linux("flags").split())
    return ("fp32", "bf16") if own and "AVX512" in str(capability) else ("fp32",)


def peak(precision: str, *, size: int = 1536, repeats: int = 5) -> float:
    """Operations a second of a square product of matrices, the best of `repeats`."""
    a, b = (torch.randn(size, size).to(PRECISIONS[precision]) for _ in range(2))
    out = a @ b
    best = float("inf")
    for _ in range(repeats):
        began_s = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - began_s)
    return 2 * size**3 / best


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and how busy it is."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": list(os.getloadavg()),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": platform.platform(terse=True),
    }


def about(facts: Mapping[str, Any]) -> str:
    """`machine` in a line."""
    load = ", ".join(f"{each:.2f}" for each in facts["load"])
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['threads']} threads, load {load}; "
        f"Python {facts['python']}, torch {facts['torch']}"
    )


def _processor() -> str:
    return _told_by_linux("model name") or platform.processor() or platform.machine()


def _told_by_linux(name: str) -> str:
    """What it says of the first processor; empty where it says nothing, or is no Linux."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
