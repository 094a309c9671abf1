"""Every way to attend on a device, beside the definition there in float64."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from model.attention import Queries, Sight, plain_attention, sight
from model.backends import attention_of
from model.config import Backend

# How far off a value or a gradient may be, beside the largest of its kind, plus one.
ALLOWED = {
    torch.float64: 1e-10,
    torch.float32: 5e-5,
    torch.bfloat16: 3e-2,
    torch.float16: 5e-3,
}
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: heads, rows, segment, memory, width of a head, and the farthest key; 0: any."""

    heads: int = 2
    rows: int = 2
    segment: int
    memory: int
    head_width: int
    window: int = 0


CASES = (
    Case(segment=1, memory=0, head_width=4),
    Case(segment=1, memory=33, head_width=16),
    Case(segment=3, memory=0, head_width=41),
    Case(segment=20, memory=13, head_width=5, window=7),
    Case(segment=37, memory=50, head_width=41),
    Case(segment=40, memory=3, head_width=64),
    Case(segment=64, memory=64, head_width=128),
    Case(rows=3, heads=4, segment=150, memory=150, head_width=41),
    Case(segment=256, memory=384, head_width=64),
)


def compare(
    device: torch.device, backends: tuple[Backend, ...], *, cases: tuple[Case, ...] = CASES
) -> Iterator[dict[str, Any]]:
    """Value and all gradients of each backend, of each type, over the cases.

    Args:
        device: Where.
        backends: Which.
        cases: Sizes. Rows begin documents in mid-segment, remember parts of their memory, and what
            is out of sight holds large numbers, which none may let through.

    Yields:
        For each backend and type: the worst error as a share of what is allowed, and its case.
    """
    for backend in backends:
        for dtype in ALLOWED:
            if dtype is torch.float64 and backend == "triton":
                continue  # it leaves such products to dense
            yield _worst(device, backend, dtype, cases)


def _worst(
    device: torch.device, backend: Backend, dtype: torch.dtype, cases: tuple[Case, ...]
) -> dict[str, Any]:
    worst, where, same = 0.0, "", True
    for number, case in enumerate(cases):
        inputs, seen = _inputs(case, dtype, device, seed=number)
        wanted = _passed("plain", [x.double() for x in inputs], seen)
        found = _passed(backend, inputs, seen)
        again = _passed(backend, inputs, seen)
        same = same and all(map(torch.equal, found, again))
        for name, one, other in zip(_NAMES, wanted, found, strict=True):
            error = float((one - other.double()).abs().max() / (1 + one.abs().max()))
            share = error / ALLOWED[dtype] if math.isfinite(error) else math.inf
            if share >= worst:
                worst, where = share, f"{name} of {asdict(case)}"
    return {
        "name": f"{backend} in {str(dtype).removeprefix('torch.')}",
        "ok": worst <= 1 and (same or backend not in ("dense", "triton")),
        "worst_by_allowed": worst,
        "allowed": ALLOWED[dtype],
        "worst": where,
        "same_bits_twice": same,
    }


_NAMES = ("value", "value without gradients", "qu", "qv", "k", "v", "r")


def _passed(backend: Backend, inputs: list[Tensor], seen: Sight) -> list[Tensor]:
    """The value, the value where no gradient is wanted, and the gradients."""
    device = inputs[0].device
    leaves = [x.detach().requires_grad_() for x in inputs]
    qu, qv, k, v, r = leaves
    queries: Queries = (qu, qv)
    if backend == "plain":
        out = bare = plain_attention(queries, k, v, r, seen, None)
    else:
        out = attention_of(backend, device=device, grad=True)(queries, k, v, r, seen, None)
        with torch.no_grad():
            bare = attention_of(backend, device=device, grad=False)(queries, k, v, r, seen, None)
    grads = torch.autograd.grad(out.double().sin().sum(), leaves)
    return [out.detach(), bare.detach(), *grads]


def _inputs(
    case: Case, dtype: torch.dtype, device: torch.device, *, seed: int
) -> tuple[list[Tensor], Sight]:
    rows, width = case.rows, case.head_width
    keys = case.memory + case.segment
    source = torch.Generator().manual_seed(seed)
    sizes = [(rows, length, width) for length in (case.segment, case.segment, keys, keys)]
    qu, qv, k, v, r = (
        torch.randn((case.heads, *size), generator=source) / width**0.25
        for size in [*sizes, (keys + 1, width)]
    )
    usable = torch.randint(0, case.memory + 1, (rows,), generator=source)
    hidden = 1e2 if dtype is torch.float16 else 1e4  # its products would leave fp16 by themselves
    for row, kept in enumerate(usable.tolist()):
        k[:, row, : case.memory - kept] = v[:, row, : case.memory - kept] = hidden
    offset = torch.randint(0, keys + 2, (rows, case.segment), generator=source)
    seen = sight(offset.to(device), usable.to(device), memory=case.memory, window=case.window)
    return [x.to(device, dtype) for x in (qu, qv, k, v, r)], seen
