"""What a bench found, for a person: a line a figure, the machine below."""

from collections.abc import Mapping
from typing import Any

from jobs.bench_timing import about

# Numbers of a figure that are shown by their own names, and how.
_SHOWN = {
    "seconds": lambda x: f"{x * 1000:,.1f} ms",
    "seconds_per_token": lambda x: f"{x * 1000:,.2f} ms a token",
    "tokens_per_second": lambda x: f"{x:,.0f} tokens/s",
    "steps_per_second": lambda x: f"{x:,.0f} steps/s",
    "wait_share": lambda x: f"waits {x:.2%}",
    "start_seconds": lambda x: f"first step after {x:.1f} s",
    "resume_seconds": lambda x: f"resumed after {x:.1f} s",
    "bytes": lambda x: f"{x / 1e6:,.0f} MB",
    "memory_ratio": lambda x: f"{x:.2f} of the memory",
}
_SIZES = {"rows": "B", "segment": "L", "memory": "M", "vocab_size": "V", "workers": "W"}


def table(found: Mapping[str, Any]) -> str:
    """Lines of `ratio (lowest to highest) of what it stands beside`, and what was measured."""
    lines = [_line(figure) for figure in found["figures"]]
    peaks = [f"{name} {rate / 1e9:,.0f} GF/s" for name, rate in found.get("peaks", {}).items()]
    if peaks:
        lines.append(f"peak: {', '.join(peaks)}, the product of two square matrices")
    if fit := found.get("fit"):
        lines.append(
            f"time: {fit['seconds_per_unit'] * 1e12:.2f} ps x B L (M + L) D, within a factor of "
            f"{fit['worst']:.2f}; exponent {fit['exponent']:.2f}"
        )
    if memory := found.get("memory"):
        lines.append(
            f"memory: N B M D bytes = {memory['counted']:,}, the tensor has {memory['states']:,}; "
            f"projected keys and values in its place {memory['projected']:,}"
        )
    return "\n".join([*lines, about(found["machine"])])


def _line(figure: Mapping[str, Any]) -> str:
    sizes = " ".join(
        f"{letter}={figure[name]}" for name, letter in _SIZES.items() if name in figure
    )
    kind = " ".join(str(figure[name]) for name in ("precision", "launcher") if name in figure)
    said = ", ".join(say(figure[name]) for name, say in _SHOWN.items() if name in figure)
    spread = f" ({figure['lowest']:.3f} to {figure['highest']:.3f})" if "lowest" in figure else ""
    return (
        f"{figure['name']:<16}{kind:<6}{sizes:<18} {figure['ratio']:>7.3f}{spread} of "
        f"{figure['beside']}: {said}"
    )
