"""`longrow train`, with all that is around a step, beside the bare step on ready-made batches."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from jobs.bench_model import MODEL, Shape, work
from jobs.bench_store import bench_store
from jobs.bench_timing import Say, machine, spread
from jobs.toml import to_toml
from model.config import ModelConfig
from pipeline.store import Store
from trainer.errors import ConfigError
from trainer.heap import keep_heap

SHAPE = Shape(rows=8, segment=128)
FEW = 0.001  # of the documents


def measure_train(  # noqa: PLR0913 - what a run is made of, each by name
    inputs: Sequence[str],
    *,
    tokenizer: str = "",
    workers: int = 1,
    shape: Shape = SHAPE,
    config: ModelConfig = MODEL,
    steps: int = 100,
    warm_steps: int = 10,
    every: int = 50,
    launcher: str = "ray",
    repeats: int = 1,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Train a run of its own, and take bare steps of a worker's rows before and after it.

    Every worker has one thread; the bare step too, so that `workers` times its rate is what they
    could do.

    Args:
        inputs: The corpus.
        tokenizer: File or URL; empty takes plain bytes.
        workers: Of the run; they share the rows.
        shape: Rows and segment of the run.
        config: Of the model; its memory is set to L.
        steps: Of the run.
        warm_steps: First steps that are not counted.
        every: Steps between checkpoints.
        launcher: "ray" or "local".
        repeats: Of run and bare steps, in turns.
        say: Told what is being measured.

    Raises:
        ConfigError: The rows cannot be shared out, or the run failed; its last words are told.
    """
    if shape.rows % workers:
        raise ConfigError(f"{shape.rows} rows cannot be shared out among {workers} workers.")
    torch.set_num_threads(1)
    keep_heap()  # as a training process does
    turns: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="longrow-bench-") as folder:
        say("building a store")
        store = bench_store(  # a run ends with an evaluation, which nobody waits for here
            inputs, tokenizer=tokenizer, folder=Path(folder), held_out=FEW
        )
        sized = replace(config, memory=shape.segment, vocab_size=Store.open(store).vocab_size)
        own = Shape(rows=shape.rows // workers, segment=shape.segment)
        bare = work(sized, own, precision="fp32").step
        bare()
        for turn in range(repeats):
            say(f"bare steps, turn {turn + 1}")
            seconds = [_seconds(bare) for _ in range(max(3, steps // 20))]
            say(f"longrow train, {steps} steps, turn {turn + 1}")
            run = Path(folder, f"run-{turn}")
            tables = _tables(sized, shape, store, run, workers, steps, every, launcher)
            lines, start_s = _train(tables, run)
            say(f"longrow train goes on, turn {turn + 1}")
            tables["trainer"]["steps"] = steps + 1
            _, resume_s = _train(tables, run, after=steps)
            say(f"bare steps again, turn {turn + 1}")
            seconds += [_seconds(bare) for _ in range(max(3, steps // 20))]
            turn_found = turn_of(lines, statistics.median(seconds), start_s, warm_steps, shape)
            turns.append(turn_found | {"resume_seconds": resume_s})
    ratios = spread([turn["ratio"] for turn in turns])
    middle = {key: statistics.median([turn[key] for turn in turns]) for key in turns[0]}
    figure = {
        "name": "longrow train",
        "launcher": launcher,
        "workers": workers,
        "rows": shape.rows,
        "segment": shape.segment,
        **middle,
        "beside": "the bare step",
        "ratio": ratios.median,
        "lowest": ratios.lowest,
        "highest": ratios.highest,
    }
    return {"machine": machine(), "repeats": repeats, "steps": steps, "figures": [figure]}


def turn_of(
    lines: list[dict[str, Any]], bare_s: float, start_s: float, warm_steps: int, shape: Shape
) -> dict[str, float]:
    """What a run did, beside bare steps of its workers.

    Args:
        lines: Its metric lines.
        bare_s: Seconds of a bare step of one worker's rows; the workers take theirs at once.
        start_s: Seconds to the end of its first step.
        warm_steps: First steps that are not counted.
        shape: Rows and segment of the run.
    """
    steps = [line for line in lines if line.get("kind") == "step"][warm_steps - 1 :]
    took_s = (steps[-1]["time"] - steps[0]["time"]) / 1000
    targets = steps[-1]["train/targets"] - steps[0]["train/targets"]
    bare = shape.rows * shape.segment / bare_s
    return {
        "tokens_per_second": targets / took_s,
        "bare_tokens_per_second": bare,
        "ratio": targets / took_s / bare,
        "wait_share": sum(line["data/wait_seconds"] for line in steps[1:]) / took_s,
        "start_seconds": start_s,
    }


def _train(
    tables: dict[str, dict[str, Any]], run: Path, *, after: int = 0
) -> tuple[list[dict[str, Any]], float]:
    """Train in a process of its own; its metric lines, and seconds to the end of its first step.

    With `after`, the run is there already, done to that step: it goes on from its checkpoint.
    """
    config = run.with_suffix(".toml")
    config.write_text(to_toml(tables), encoding="utf-8")
    began_s = time.time()
    done = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", "jobs.cli", "train", str(config)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-5:])
        raise ConfigError(f"The run ended with exit code {done.returncode}: {last}")
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    first = next(line for line in lines if line.get("kind") == "step" and line["step"] > after)
    return lines, first["time"] / 1000 - began_s


def _tables(
    config: ModelConfig,
    shape: Shape,
    store: str,
    run: Path,
    workers: int,
    steps: int,
    every: int,
    launcher: str,
) -> dict[str, dict[str, Any]]:
    names = ("layers", "width", "heads", "head_width", "inner_width", "memory", "dropout")
    tracking = run.parent / "mlflow.db"
    return {
        "run": {"name": run.name, "folder": str(run.parent)},
        "data": {"store": store},
        "rows": {"rows": shape.rows, "segment": shape.segment},
        "model": {name: getattr(config, name) for name in names},
        "trainer": {"steps": steps, "threads": 1},
        "checkpoint": {"every": every},
        "evaluate": {"rows": shape.rows, "memory": [shape.segment]},
        "tracking": {"uri": f"sqlite:///{tracking}"},
        "cluster": {"launcher": launcher, "workers": workers},
    }


def _seconds(act: Any) -> float:
    began_s = time.perf_counter()
    act()
    return time.perf_counter() - began_s
