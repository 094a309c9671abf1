"""The ways to attend, by name, and the choice among them. Each equals the plain definition.

| backend | how |
|---|---|
| plain | the definition, every pair on its own; slow |
| dense | weights kept for the backward pass; on a CPU in tiles that stay in its cache |
| chunked | in tiles, weights computed again in the backward pass: the least memory |
| sdpa | torch's fused kernel where no gradient is wanted and no weight is lost, else dense |
| triton | a kernel for GPUs, not run on one so far; half precision, no weight lost, else dense |
"""

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from model.attention import Attention, Drop, Queries, Sight, plain_attention, product_type, sight
from model.attention_tiled import tiled_attention
from model.attention_whole import sdpa_attention, whole_attention
from model.config import Backend

BACKENDS: tuple[Backend, ...] = get_args(Backend)
# Scores of one row up to which products of whole matrices in half precision beat tiles on a CPU.
_SMALL = 1 << 19
_CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.1}


def dense_attention(
    q: Queries, k: Tensor, v: Tensor, r: Tensor, seen: Sight, drop: Drop | None = None
) -> Tensor:
    """Attend and keep the weights for the backward pass; as `plain_attention`.

    In tiles on a CPU; elsewhere, and where torch.compile wants one graph, by whole matrices.
    """
    if k.device.type != "cpu" or torch.compiler.is_compiling() or _is_small(q[0], k):
        return whole_attention(q, k, v, r, seen, drop)
    return tiled_attention(q, k, v, r, seen, drop, keep=True)


def chunked_attention(
    q: Queries, k: Tensor, v: Tensor, r: Tensor, seen: Sight, drop: Drop | None = None
) -> Tensor:
    """Attend and keep no weights: they are computed again; as `plain_attention`."""
    return tiled_attention(q, k, v, r, seen, drop, keep=False)


def triton_attention(
    q: Queries, k: Tensor, v: Tensor, r: Tensor, seen: Sight, drop: Drop | None = None
) -> Tensor:
    """Attend with the fused kernels, where they are for such inputs; as `plain_attention`."""
    from model.attention_triton import fits, fused_attention  # Triton may not be there

    if drop is not None or not fits(product_type(k), k.shape[3]):
        return dense_attention(q, k, v, r, seen, drop)
    return fused_attention(q, k, v, r, seen)


def attention_of(backend: Backend, *, device: torch.device, grad: bool) -> Attention:
    """The function of a backend.

    Args:
        backend: Its name.
        device: Where the model is.
        grad: Whether a gradient is wanted.
    """
    if backend == "auto":
        backend = _chosen(device, grad=grad)
    return _FUNCTIONS[backend]


def in_words(backend: Backend, *, device: torch.device) -> str:
    """How a model with this backend attends, for a run's first lines."""
    if backend != "auto":
        return backend
    trains, reads = (_chosen(device, grad=grad) for grad in (True, False))
    return trains if trains == reads else f"{trains} in training, {reads} without gradients"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The backend a process works with.

    Attributes:
        backend: Its name.
        fault: Why it is not the one that was asked for; empty if it is.
    """

    backend: Backend
    fault: str = ""


def settle(
    wanted: Backend, *, device: torch.device, dtype: torch.dtype, head_width: int
) -> Settled:
    """Try a backend on a tiny case beside the definition; fall back to one that needs no trying.

    Args:
        wanted: The backend that was asked for.
        device: Where the model is.
        dtype: Of the products of matrices.
        head_width: Of the model (E).
    """
    try:
        with torch.enable_grad():
            worst = _probe(wanted, device=device, dtype=dtype, head_width=head_width)
        fault = "" if worst <= 1 else f"its numbers are {worst:.1f} times as far off as they may be"
    except Exception as error:  # noqa: BLE001 - a kernel fails in ways of its own
        fault = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if not fault:
        return Settled(backend=wanted)
    other: Backend = "plain" if wanted == "dense" else "dense"
    return Settled(
        backend=other,
        fault=f"Attention {wanted} failed its probe on {device.type} ({fault}): {other} instead.",
    )


def _chosen(device: torch.device, *, grad: bool) -> Backend:
    """What `auto` stands for: on a CPU tiles beat torch's kernel without gradients too."""
    return "dense" if grad or device.type == "cpu" else "sdpa"


def _is_small(q: Tensor, k: Tensor) -> bool:
    """Whether whole matrices are faster; not by the number of rows, which may differ by worker."""
    H, _, L, _ = q.shape
    return product_type(k).itemsize == 2 and H * L * k.shape[2] < _SMALL


def _probe(backend: Backend, *, device: torch.device, dtype: torch.dtype, head_width: int) -> float:
    """The largest error of value and gradients on a small case, as a share of what is allowed."""
    H, B, L, M, E = 2, 2, 5, 3, head_width
    K = M + L
    source = torch.Generator().manual_seed(0)
    sizes = [(H, B, L, E), (H, B, L, E), (H, B, K, E), (H, B, K, E), (H, K + 1, E)]
    inputs = [torch.randn(size, generator=source) / E**0.25 for size in sizes]
    offset = torch.tensor([[0, 1, 0, 1, 2], [9, 10, 11, 12, 13]], device=device)
    seen = sight(offset, torch.tensor([1, 3], device=device), memory=M)
    found: list[list[Tensor]] = []
    for attend, kind in (
        (plain_attention, torch.float64),
        (attention_of(backend, device=device, grad=True), dtype),
    ):
        qu, qv, k, v, r = given = [x.to(dtype).to(device, kind).requires_grad_() for x in inputs]
        out = attend((qu, qv), k, v, r, seen, None)
        grads = torch.autograd.grad(out.sum() + out.square().sum(), given)
        found.append([out.detach(), *grads])
    wanted, here = found
    if not all(bool(x.isfinite().all()) for x in here):
        return float("inf")
    return max(
        float((x.double() - y).abs().max() / (_CLOSE[dtype] * (1 + y.abs().max())))
        for x, y in zip(here, wanted, strict=True)
    )


_FUNCTIONS: dict[Backend, Attention] = {
    "plain": plain_attention,
    "dense": dense_attention,
    "sdpa": sdpa_attention,
    "chunked": chunked_attention,
    "triton": triton_attention,
}
