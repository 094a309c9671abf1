"""What `longrow show` says of a run and of a checkpoint."""

from pathlib import Path
from typing import Any

from jobs.find import run_of
from jobs.report import table
from jobs.visible import echo
from pipeline.files import list_folder
from trainer.checkpoint import checkpoints, faults_now, faults_of, read_state
from trainer.retention import PINNED
from trainer.run_folder import RunFolder
from trainer.summary import read_scores


def show_run(folder: RunFolder) -> dict[str, Any]:
    """Print how far a run has come, what it scored, and its attempts and checkpoints."""
    steps = [line for line in folder.lines() if line["kind"] == "step"]
    config = folder.read_json("config.json") or {}
    facts: dict[str, Any] = {
        "run": folder.place,
        "store": _reads(config),
        "steps": steps[-1]["step"] if steps else 0,
        "of": config.get("trainer", {}).get("steps"),
        "train_loss": steps[-1]["train/loss"] if steps else None,
        "skipped_steps": steps[-1]["train/skipped_steps"] if steps else 0,
    }
    facts |= _shares(config, steps[-1] if steps else {})
    for score in read_scores(folder):
        facts[f"bits_per_byte_memory_{score.memory}"] = score.bits_per_byte
    echo(table(facts))
    echo("\nattempts")
    for attempt in folder.attempts():
        whence = attempt.resumed_from or "the start"
        echo(
            f"  {attempt.number}: from step {attempt.start_step} ({whence}), "
            f"{attempt.world_size} workers of {attempt.threads} threads"
        )
    echo("\ncheckpoints")
    kept: list[str] = []
    for path in checkpoints(folder.checkpoints):
        wrong = faults_now(folder, path)
        if wrong is None:
            continue
        kept.append(path.name)
        pinned = ", pinned" if (path / PINNED).exists() else ""
        echo(f"  {path.name}  {_size(path):>10}  {'; '.join(wrong) or 'whole'}{pinned}")
        folder.let_go(path)
    for fault in folder.unfinished():
        echo(f"  {fault}")
    return facts | {"checkpoints": kept}


def show_checkpoint(path: Path) -> dict[str, Any]:
    """Print what a checkpoint holds and whether it is whole."""
    folder = run_of(path.absolute())
    wrong = faults_of(folder, path)
    facts: dict[str, Any] = {
        "checkpoint": folder.named(str(path)),
        "faults": wrong,
        "bytes": _bytes(path),
        "pinned": (path / PINNED).exists(),
    }
    if not wrong:
        state = read_state(path)
        facts |= {
            "step": state["step"],
            "attempt": state["attempt"],
            "world_size": state["world_size"],
            "threads": state["threads"],
            "store": state["plan"]["store"],
            "init": state["plan"].get("init") or None,
            "mlflow_run_id": state["mlflow_run_id"],
            **{f"counters.{key}": value for key, value in state["counters"].items()},
            **{f"versions.{key}": value for key, value in state["versions"].items()},
        }
    echo(table(facts | {"faults": "; ".join(wrong) or "none"}))
    return facts


def _reads(config: dict[str, Any]) -> str | None:
    """The store of a run, or those of its mixture."""
    data = config.get("data", {})
    return ", ".join(one["store"] for one in data.get("mixture", ())) or data.get("store")


def _shares(config: dict[str, Any], line: dict[str, Any]) -> dict[str, str]:
    """Of a mixture, what was dealt of each store so far."""
    return {
        f"from {one['store']}": (
            f"{line[f'data/source_{number}/share']:.2%} of the tokens dealt, "
            f"{line[f'data/source_{number}/tokens']:,}, in epoch "
            f"{line[f'data/source_{number}/epoch']}"
        )
        for number, one in enumerate(config.get("data", {}).get("mixture", ()))
        if f"data/source_{number}/share" in line
    }


def _bytes(path: Path) -> int:
    return sum(size or 0 for size in list_folder(str(path)).values())  # a run may remove it now


def _size(path: Path) -> str:
    return f"{_bytes(path) / 1e6:,.1f} MB"
