"""A run in a few numbers, from what lies in its folder."""

from dataclasses import asdict, dataclass
from typing import Any

from trainer.best import scores_in
from trainer.checkpoint import checkpoints
from trainer.evaluation import Scores
from trainer.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run came to; written to summary.json.

    Attributes:
        documents: Documents of the store, all splits.
        tokens: Text tokens of the store, all splits.
        steps: Steps done.
        train_loss_first: Nats per token of the first step.
        train_loss_last: Nats per token of the last step.
        val_bits_per_byte: Of the held-out documents, with the memory of training.
        val_bits_per_byte_no_memory: The same weights and documents, memory 0.
        tokens_per_second: Targets over seconds, of all steps in metrics.jsonl.
        wall_seconds: Of the command that wrote this.
        world_size: W of the last attempt.
        mlflow_run_id: The run in MLflow.
        checkpoint: The newest checkpoint.
        resumed_from_step: Where the last attempt went on; None when it began at step 0.
    """

    documents: int
    tokens: int
    steps: int
    train_loss_first: float | None
    train_loss_last: float | None
    val_bits_per_byte: float | None
    val_bits_per_byte_no_memory: float | None
    tokens_per_second: float | None
    wall_seconds: float
    world_size: int
    mlflow_run_id: str
    checkpoint: str
    resumed_from_step: int | None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def read_scores(folder: RunFolder) -> list[Scores]:
    """The scores of the newest evaluation, none if there was none.

    Raises:
        DataError: Its file is damaged.
    """
    files = sorted(folder.evaluations.glob("step_*.json"))
    return scores_in(files[-1]) if files else []


def summarize(
    folder: RunFolder,
    *,
    documents: int,
    tokens: int,
    memory: int,
    wall_seconds: float,
    mlflow_run_id: str,
) -> Summary:
    """Sum up the run in `folder`; `memory` is the length it was trained with."""
    steps = [line for line in folder.lines() if line["kind"] == "step"]
    by_memory = {score.memory: score for score in read_scores(folder)}
    with_memory, without = by_memory.get(memory), by_memory.get(0)
    attempts = folder.attempts()
    last = attempts[-1] if attempts else None
    newest = checkpoints(folder.checkpoints)
    seconds = sum(line["train/step_seconds"] for line in steps)
    targets = steps[-1]["train/targets"] if steps else 0
    return Summary(
        documents=documents,
        tokens=tokens,
        steps=steps[-1]["step"] if steps else 0,
        train_loss_first=steps[0]["train/loss"] if steps else None,
        train_loss_last=steps[-1]["train/loss"] if steps else None,
        val_bits_per_byte=with_memory.bits_per_byte if with_memory else None,
        val_bits_per_byte_no_memory=without.bits_per_byte if without else None,
        tokens_per_second=targets / seconds if seconds else None,
        wall_seconds=round(wall_seconds, 1),
        world_size=last.world_size if last else 0,
        mlflow_run_id=mlflow_run_id,
        checkpoint=folder.named(str(newest[-1])) if newest else "",
        resumed_from_step=last.start_step if last and last.resumed_from else None,
    )
