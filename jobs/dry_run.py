"""What a run would take, found by two steps of its first worker: sizes, memory, time.

Nothing is written, no folder is made, no MLflow and no Ray is asked.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from jobs.config import RunConfig
from jobs.drive import folder_of, open_checked, plan_of, world_size
from model.memory import empty_memory
from pipeline.client import RowClient
from pipeline.heap import most_host_memory_bytes
from pipeline.layout import rows_of_rank
from pipeline.server import RowServer
from trainer.average import begin_average
from trainer.flops import step_flops
from trainer.heap import keep_heap
from trainer.load import best_device, initial_weights
from trainer.optimizer import learning_rate, make_optimizer
from trainer.snapshot import take_snapshot
from trainer.start import make_model
from trainer.step import Objective, Rows, StepPlan, take_step


def dry_run(config: RunConfig) -> dict[str, Any]:
    """Do the first step of worker 0 twice and tell what it took.

    Raises:
        As `drive`.
    """
    # No cache either: what lies elsewhere is read into memory.
    config = replace(config, data=replace(config.data, cache=""))
    store = open_checked(config)
    plan = plan_of(config, folder_of(config), store)
    workers = world_size(config)
    mine = rows_of_rank(plan.layout.rows, rank=0, world_size=workers)
    device = best_device()
    if plan.trainer.threads:
        torch.set_num_threads(plan.trainer.threads)
    keep_heap()  # as a training process does
    model, fault = make_model(plan, device)
    if plan.init:
        initial_weights(plan.init, model, tokenizer_sha256=plan.tokenizer_sha256)
    optimizer = make_optimizer(model, plan.optimizer)
    memory = empty_memory(plan.model, mine[1] - mine[0], device=device)
    server = RowServer(store, plan.layout)
    client = RowClient(
        server, reader=None, state=server.initial_state(), rows=mine, warn=lambda _text: None
    )
    batch, _ = client.next()
    client.close()
    tokens, targets, offset = (
        torch.from_numpy(array.astype("int64")).to(device)
        for array in (batch.tokens, batch.targets, batch.offset)
    )
    take = partial(
        take_step,
        Objective(model, z_loss=plan.trainer.z_loss),
        optimizer,
        Rows(
            tokens=tokens,
            targets=targets,
            offset=offset,
            numbers=torch.arange(*mine, device=device),
        ),
        plan=StepPlan(
            accumulation=plan.trainer.accumulation,
            clip=plan.optimizer.clip,
            precision=plan.trainer.precision,
            seed=plan.seed,
            world_size=1,
        ),
        step=0,
        targets=max(1, int((batch.targets >= 0).sum())),
        rate=learning_rate(0, plan.optimizer, steps=plan.trainer.steps),
        seen=torch.zeros(2, dtype=torch.float64, device=device),
    )
    result, memory = take(memory)
    loss = float(result.loss) / max(1, int((batch.targets >= 0).sum()))
    # Timed is a second one: the first takes its memory, and kernels make up their minds.
    began = time.perf_counter()
    float(take(memory)[0].loss)
    seconds = time.perf_counter() - began
    snapshot = take_snapshot(
        model,
        optimizer,
        memory,
        step=1,
        rank=0,
        rows=mine,
        state=dict,
        average=begin_average(model) if plan.trainer.average else (),
    )
    memory_bytes = memory.states.nbytes + memory.usable.nbytes
    per_step = plan.layout.rows * plan.layout.segment
    flops = step_flops(plan.model, rows=plan.layout.rows, segment=plan.layout.segment)
    inputs = int((store.num_tokens("train") + 1).sum())  # BOS stands before each document
    weights = list(model.parameters())
    return {
        "run_folder": plan.folder,
        "workers": workers,
        "device": device.type,
        "attention": fault or model.backend,
        "parameters": sum(parameter.numel() for parameter in weights),
        "flops_per_step": flops,
        "flops_per_token": flops / per_step,
        "device_state_bytes": snapshot.size_bytes + sum(parameter.nbytes for parameter in weights),
        "device_peak_bytes": _peak_bytes(device),
        "checkpoint_bytes": snapshot.size_bytes + memory_bytes * (workers - 1),
        "tokens_per_step": per_step,
        "steps_per_epoch": inputs / per_step,
        "epochs": plan.trainer.steps * per_step / inputs,
        "first_loss": loss,
        "step_seconds": seconds,
        "training_seconds": seconds * plan.trainer.steps,
    }


def in_words(facts: Mapping[str, Any]) -> dict[str, str]:
    """The same for a person: what it would take first, in units that one reads at a glance."""
    seconds = facts["training_seconds"]
    return {
        "training": f"{_time(seconds)} at {facts['step_seconds']:.3g} s a step, as one step here "
        "took; evaluations, saves and other workers' waits not counted",
        "model": f"{_number(facts['parameters'])} weights, attention {facts['attention']}",
        "memory": f"{_bytes(facts['device_state_bytes'])} of state a device, "
        f"{_bytes(facts['device_peak_bytes'])} at most in this step, on {facts['device']}",
        "checkpoint": _bytes(facts["checkpoint_bytes"]),
        "a step": f"{facts['tokens_per_step']:,} tokens, {_number(facts['flops_per_step'])}FLOP, "
        f"on {facts['workers']} workers",
        "an epoch": f"{facts['steps_per_epoch']:,.1f} steps; the run takes "
        f"{facts['epochs']:.3g} epochs",
        "first loss": f"{facts['first_loss']:.4f} nats per token",
        "run folder": str(facts["run_folder"]),
    }


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def _number(value: float) -> str:
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} "


def _bytes(value: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} bytes"


def _peak_bytes(device: torch.device) -> int:
    """The most that was held at a time: by torch on a GPU, by the whole process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return most_host_memory_bytes()
