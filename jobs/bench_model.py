"""Training steps, the forward pass of an evaluation, memory and loss, beside the machine's peaks.

Useful operations are those of trainer/flops.py: products of matrices with the scores that a query
may see alone, and nothing that is computed a second time.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from jobs.bench_timing import Say, in_turns, machine, peak, precisions, ratio, share, spread
from model.config import Backend, ModelConfig
from model.cross_entropy import linear_cross_entropy
from model.memory import Memory, empty_memory
from model.transformer_xl import TransformerXL
from trainer.flops import step_flops
from trainer.heap import keep_heap
from trainer.optimizer import make_optimizer
from trainer.settings import OptimizerSettings
from trainer.step import Objective, Rows, StepPlan, take_step
from trainer.usage import host_memory_bytes, most_host_memory_bytes

CPU = torch.device("cpu")
# d 512, 8 heads, as the published enwik8 base model; two of its layers are enough to time.
MODEL = ModelConfig(
    vocab_size=256, layers=2, width=512, heads=8, head_width=64, inner_width=2048, dropout=0.0
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Rows of `segment` tokens with as many states of memory."""

    rows: int
    segment: int


SHAPES = (Shape(rows=8, segment=128), Shape(rows=8, segment=256), Shape(rows=4, segment=512))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """A model in the middle of a run: its memory is full, so every score is there.

    Attributes:
        model: The model.
        step: Takes a training step.
        forward: Reads the segment without gradients.
        train_forward: Reads it as training does, and drops the graph.
    """

    model: TransformerXL
    step: Callable[[], object]
    forward: Callable[[], object]
    train_forward: Callable[[], object]


def work(
    config: ModelConfig,
    shape: Shape,
    *,
    precision: str,
    backend: Backend = "auto",
    device: torch.device = CPU,
) -> Work:
    """Build a model and what is to be timed of it; with clusters, rare tokens are rare."""
    model = TransformerXL(config, backend=backend).to(device)
    objective, optimizer = Objective(model), make_optimizer(model, OptimizerSettings())
    source = torch.Generator().manual_seed(0)
    size = (shape.rows, shape.segment)
    tokens = torch.randint(config.vocab_size, size, generator=source)
    if config.cutoffs:
        tokens = (config.vocab_size ** torch.rand(size, generator=source)).long() - 1
    tokens = tokens.to(device)
    offset = torch.arange(config.memory, config.memory + shape.segment, device=device)
    offset = offset.expand(size).contiguous()
    empty = empty_memory(config, shape.rows, device=device)
    memory = Memory(
        states=torch.randn(empty.states.shape, generator=source).to(device),
        usable=torch.full_like(empty.usable, config.memory),
    )
    numbers = torch.arange(shape.rows, device=device)
    rows = Rows(tokens=tokens, targets=tokens, offset=offset, numbers=numbers)
    plan = StepPlan(accumulation=1, clip=0.25, precision=precision, seed=0, world_size=1)
    seen = torch.zeros(2, dtype=torch.float64, device=device)

    def step() -> None:
        take_step(
            objective, optimizer, rows, memory, plan=plan, step=0, targets=tokens.numel(),
            rate=1e-4, seen=seen,
        )  # fmt: skip

    def forward() -> None:
        half = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
        with half:
            model(tokens, offset, memory)

    return Work(model=model, step=step, forward=torch.no_grad()(forward), train_forward=forward)


def measure_model(
    *,
    shapes: tuple[Shape, ...] = SHAPES,
    config: ModelConfig = MODEL,
    vocab_size: int = 32_768,
    loss_rows: int = 1024,
    repeats: int = 5,
    peak_size: int = 1536,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Time training steps, evaluation, the low-memory mode and the loss.

    Args:
        shapes: Of the rows; M is L.
        config: Of the model; its memory is set to L.
        vocab_size: Of the loss (V).
        loss_rows: Targets of the loss.
        repeats: Of every measurement.
        peak_size: Of the matrices whose product is the peak.
        say: Told what is being measured.
    """
    keep_heap()  # as a training process does
    figures: list[dict[str, Any]] = []
    peaks: dict[str, float] = {}
    for precision in precisions():
        for shape in shapes:
            sized = replace(config, memory=shape.segment)
            say(f"training steps in {precision}, L = M = {shape.segment}")
            figures += _steps(sized, shape, precision, repeats, peaks, peak_size, say)
    say("memory of a training step, each in a process of its own")
    longest = max(shapes, key=lambda shape: shape.segment)
    figures.append(_memory(replace(config, memory=longest.segment), longest))
    say(f"the loss over {vocab_size:,} ids")
    figures.append(_loss(config.width, vocab_size, loss_rows, repeats))
    return {"machine": machine(), "peaks": peaks, "repeats": repeats, "figures": figures}


def _steps(
    config: ModelConfig,
    shape: Shape,
    precision: str,
    repeats: int,
    peaks: dict[str, float],
    peak_size: int,
    say: Say,
) -> list[dict[str, Any]]:
    usual = work(config, shape, precision=precision)
    lean = work(config, shape, precision=precision, backend="chunked")
    highest = peak(precision, size=peak_size)
    found = in_turns(
        {
            "train": usual.step,
            "chunked": lean.step,
            "train forward": usual.train_forward,
            "evaluation": usual.forward,
        },
        repeats=repeats,
        say=say,
    )
    highest = max(highest, peak(precision, size=peak_size))
    peaks[precision] = max(highest, peaks.get(precision, 0.0))
    useful = step_flops(config, rows=shape.rows, segment=shape.segment)
    time_s = spread(found["train"])
    named = {"precision": precision, "segment": shape.segment, "rows": shape.rows}
    return [
        {
            "name": "training step",
            **named,
            "seconds": time_s.median,
            "tokens_per_second": shape.rows * shape.segment / time_s.median,
            "beside": "peak",
            **share(useful, time_s, highest),
        },
        {
            "name": "chunked step",
            **named,
            "seconds": spread(found["chunked"]).median,
            "beside": "training step",
            **ratio(found["chunked"], found["train"]),
        },
        {
            "name": "evaluation",
            **named,
            "seconds": spread(found["evaluation"]).median,
            "beside": "training's forward",
            **ratio(found["evaluation"], found["train forward"]),
        },
    ]


def _memory(config: ModelConfig, shape: Shape) -> dict[str, Any]:
    lean, usual = (apart(_step_bytes, config, shape, backend) for backend in ("chunked", "auto"))
    return {
        "name": "chunked memory",
        "precision": "fp32",
        "segment": shape.segment,
        "rows": shape.rows,
        "bytes": lean,
        "beside_bytes": usual,
        "beside": "training step",
        "ratio": lean / usual,
    }


def apart(act: Callable[..., int], *given: Any) -> int:
    """Call a function in a fresh process: the most memory that a process took never falls."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as pool:
        return pool.submit(act, *given, torch.get_num_threads()).result()


def _step_bytes(config: ModelConfig, shape: Shape, backend: Backend, threads: int) -> int:
    """Memory that two training steps add: weights, gradients, moments and what a step needs."""
    torch.set_num_threads(threads)
    tiny = work(
        replace(config, layers=1, width=16, heads=1, head_width=8, inner_width=8, memory=4),
        Shape(rows=1, segment=4),
        precision="fp32",
        backend=backend,
    )
    tiny.step()  # what torch itself takes, once
    before = host_memory_bytes()
    step = work(config, shape, precision="fp32", backend=backend).step
    step()
    step()
    return most_host_memory_bytes() - before


def _loss_inputs(width: int, vocab_size: int, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden = torch.randn(rows, width, requires_grad=True)
    weight = (torch.randn(vocab_size, width) * 0.02).requires_grad_()
    bias = torch.zeros(vocab_size, requires_grad=True)
    return hidden, weight, bias, torch.randint(vocab_size, (rows,))


def _ours(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> None:
    torch.autograd.grad(
        linear_cross_entropy(hidden, weight, bias, targets).sum(), (hidden, weight, bias)
    )


def _plain(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> None:
    loss = cross_entropy(linear(hidden, weight, bias), targets, reduction="sum")
    torch.autograd.grad(loss, (hidden, weight, bias))


def _loss_bytes(kind: str, width: int, vocab_size: int, rows: int, threads: int) -> int:
    torch.set_num_threads(threads)
    act = _ours if kind == "ours" else _plain
    act(*_loss_inputs(width, 16, 8))
    inputs = _loss_inputs(width, vocab_size, rows)
    before = host_memory_bytes()
    act(*inputs)
    return most_host_memory_bytes() - before


def _loss(width: int, vocab_size: int, rows: int, repeats: int) -> dict[str, Any]:
    inputs = _loss_inputs(width, vocab_size, rows)
    found = in_turns(
        {"ours": lambda: _ours(*inputs), "plain": lambda: _plain(*inputs)}, repeats=repeats
    )
    ours, plain = (apart(_loss_bytes, kind, width, vocab_size, rows) for kind in ("ours", "plain"))
    return {
        "name": "loss",
        "precision": "fp32",
        "vocab_size": vocab_size,
        "rows": rows,
        "seconds": spread(found["ours"]).median,
        "beside": "F.linear and F.cross_entropy",
        **ratio(found["ours"], found["plain"]),
        "bytes": ours,
        "beside_bytes": plain,
        "memory_ratio": ours / plain,
    }
