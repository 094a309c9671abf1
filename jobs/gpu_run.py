"""A short training on a device: loss falls, a resume repeats every bit, a step waits for nobody.

One rank in a process group of its own, so that gradients pass through DDP and nccl. The run's code
is that of `longrow train`; its driver, Ray and MLflow are left out.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from jobs.bench_model import Shape, work
from jobs.corpus import shipped_files
from model.config import ModelConfig
from pipeline.build import build_store
from pipeline.layout import Layout
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer
from trainer.board import Board, LocalReporter
from trainer.checkpoint import checkpoints
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder
from trainer.settings import (
    CheckpointSettings,
    ClusterSettings,
    EvaluateSettings,
    OptimizerSettings,
    TrainerSettings,
)

MODEL = ModelConfig(layers=4, width=256, heads=4, head_width=64, inner_width=1024, memory=128)
SMALL = ModelConfig(layers=2, width=32, heads=2, head_width=16, inner_width=64, memory=32)


def make_store(folder: Path, *, documents: int, vocab_size: int) -> Path:
    """A store of the corpus that comes with the package; of texts, so that no JSON is parsed."""
    texts: list[str] = []
    for path in shipped_files():
        if str(path).endswith(".jsonl"):
            with Path(path).open(encoding="utf-8") as file:
                texts += [json.loads(line)["text"] for line in file]
    corpus = folder / "texts"
    corpus.mkdir()
    for number, text in enumerate(texts[:documents]):
        (corpus / f"{number:05d}.txt").write_text(text, encoding="utf-8")
    tokenizer = folder / "tokenizer.model"
    tokenizer.write_bytes(train_tokenizer(texts[:documents], vocab_size=vocab_size))
    build_store([str(corpus)], tokenizer=str(tokenizer), out=str(folder / "store"))
    return folder / "store"


def checked_run(
    device: torch.device,
    folder: Path,
    *,
    steps: int,
    model: ModelConfig = MODEL,
    documents: int = 400,
    vocab_size: int = 2000,
) -> Iterator[dict[str, Any]]:
    """Train `steps` steps, deterministically; and again with a stop at half of them.

    Args:
        device: Where.
        folder: For the store and both runs.
        steps: Of a run, an even number.
        model: What is trained.
        documents: Of the store.
        vocab_size: Of its tokenizer.

    Yields:
        Whether the loss fell, and whether every later loss and every tensor is equal bit for bit.
    """
    store = make_store(folder, documents=documents, vocab_size=vocab_size)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=(folder / "meeting").absolute().as_uri(),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
    )
    try:
        whole = _plan(store, folder / "whole", steps=steps, model=model)
        _train(whole, device)
        losses = _losses(whole)
        first, last = (sum(part) / len(part) for part in (losses[:5], losses[-5:]))
        yield {
            "name": f"training, {steps} steps through DDP",
            "ok": len(losses) == steps and last < first,
            "loss_of_first_5": first,
            "loss_of_last_5": last,
        }
        halved = _plan(store, folder / "halved", steps=steps // 2, model=model)
        _train(halved, device)
        _train(replace(halved, launch="again", trainer=whole.trainer), device)
        again, same = _losses(halved), _tensors(whole) == _tensors(halved)
        yield {
            "name": f"resume at step {steps // 2}",
            "ok": again == losses and same,
            "losses_equal": sum(map(float.__eq__, again, losses)),
            "of": len(losses),
            "tensors_equal": same,
        }
    finally:
        dist.destroy_process_group()
        torch.use_deterministic_algorithms(mode=False)


def quiet_step(device: torch.device, *, model: ModelConfig = MODEL) -> dict[str, Any]:
    """Whether a step, once everything is compiled and allocated, waits for the device."""
    sized = replace(model, vocab_size=1000)
    step = work(sized, Shape(rows=4, segment=64), precision="bf16", device=device).step
    for _ in range(3):
        step()
    if device.type != "cuda":
        return {"name": "no synchronisation in a step", "ok": True, "skipped": "no GPU"}
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {"name": "no synchronisation in a step", "ok": True}


def _plan(store: Path, folder: Path, *, steps: int, model: ModelConfig) -> TrainPlan:
    RunFolder(folder).create()
    opened = Store.open(str(store))
    return TrainPlan(
        folder=str(folder),
        store=str(store),
        store_fingerprint=opened.fingerprint,
        tokenizer_sha256=opened.manifest.tokenizer,
        launch="first",
        mlflow_run_id="",
        seed=1,
        layout=Layout(rows=8, segment=64, seed=1),
        model=replace(model, vocab_size=opened.vocab_size),
        trainer=TrainerSettings(steps=steps, precision="bf16", deterministic=True),
        optimizer=OptimizerSettings(learning_rate=1e-3, warmup_steps=10, schedule="constant"),
        evaluate=EvaluateSettings(every=0),
        checkpoint=CheckpointSettings(every=10, keep_best=0),
        cluster=ClusterSettings(launcher="local"),
    )


def _train(plan: TrainPlan, device: torch.device) -> None:
    group = Group(device=device, reduce_alone=True)
    verdict = train(plan, group, LocalReporter(Board()), lambda _: None)
    if verdict.status != "done":
        raise RuntimeError(f"The training ended as {verdict.status}: {verdict.reason}")


def _losses(plan: TrainPlan) -> list[float]:
    lines = Path(plan.folder, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    told = [json.loads(line) for line in lines]
    return [line["train/loss"] for line in told if line["kind"] == "step"]


def _tensors(plan: TrainPlan) -> dict[str, bytes]:
    """The files of the newest checkpoint's weights, moments and memory."""
    newest = checkpoints(RunFolder(Path(plan.folder)).checkpoints)[-1]
    return {file.name: file.read_bytes() for file in newest.glob("*.safetensors")}
