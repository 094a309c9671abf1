"""All that a worker needs to know to take part in a run: plain values, the same for every rank."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from model.config import ModelConfig
from pipeline.layout import Layout
from trainer.errors import ConfigError
from trainer.settings import (
    CheckpointSettings,
    ClusterSettings,
    EvaluateSettings,
    OptimizerSettings,
    TrainerSettings,
)

# Sections whose keys may change at a resume, but for what is in a run's identity.
SECTIONS = {
    "model": ModelConfig,
    "trainer": TrainerSettings,
    "optimizer": OptimizerSettings,
    "evaluate": EvaluateSettings,
    "checkpoint": CheckpointSettings,
    "cluster": ClusterSettings,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """A run, resolved: every worker of every attempt is given the same one.

    Attributes:
        folder: The run's folder, seen by all workers under this name.
        store: The token store, likewise.
        store_fingerprint: What the driver found there; a worker that finds another stops.
        tokenizer_sha256: Of the store's tokenizer.
        launch: Names this start of the driver; the retry budget counts its attempts alone.
        mlflow_run_id: Kept in each checkpoint; empty without tracking.
        seed: Of the weights and of the dropout noise.
        init: Checkpoint or folder whose weights the run begins with; empty draws them.
    """

    folder: str
    store: str
    store_fingerprint: str
    tokenizer_sha256: str
    launch: str
    mlflow_run_id: str
    seed: int
    layout: Layout
    model: ModelConfig
    trainer: TrainerSettings
    optimizer: OptimizerSettings
    evaluate: EvaluateSettings
    checkpoint: CheckpointSettings
    cluster: ClusterSettings
    init: str = ""

    def identity(self) -> dict[str, Any]:
        """What makes the run this run: a resume with another value of any of these is refused."""
        model = asdict(self.model)
        model.pop("memory")
        parts = {
            "data.store_fingerprint": self.store_fingerprint,
            "tokenizer.sha256": self.tokenizer_sha256,
            "run.seed": self.seed,
            **{f"rows.{key}": value for key, value in asdict(self.layout).items()},
            **{f"model.{key}": value for key, value in model.items()},
        }
        return json.loads(json.dumps(parts))  # as a checkpoint holds it: lists, not tuples


def _defaults() -> dict[str, Any]:
    tables = {"rows": asdict(Layout()), "model": asdict(ModelConfig())}
    named = {
        f"{table}.{key}": value for table, held in tables.items() for key, value in held.items()
    }
    return json.loads(json.dumps({key: named[key] for key in named if key != "model.memory"}))


DEFAULTS = _defaults()


def check_identity(saved: dict[str, Any], wanted: dict[str, Any], *, where: str) -> None:
    """Refuse to go on from a checkpoint of another run.

    Args:
        saved: `TrainPlan.identity` as the checkpoint holds it.
        wanted: The same of the run that would go on.
        where: The checkpoint, for the message.

    Raises:
        ConfigError: Names every key that differs, with both values.
    """
    # A key that is younger than the checkpoint had its default then.
    saved = {key: value for key, value in DEFAULTS.items() if key in wanted} | saved
    differ = [
        f"{key} is {saved.get(key)!r} there and {wanted.get(key)!r} here"
        for key in sorted(saved.keys() | wanted.keys())
        if saved.get(key) != wanted.get(key)
    ]
    if differ:
        raise ConfigError(
            f"{where} belongs to another run: {'; '.join(differ)}. Set these back, or give the run "
            "another name to start anew."
        )


def changes(saved: dict[str, Any], plan: TrainPlan) -> dict[str, str]:
    """Settings that differ from those a checkpoint was written with and may: "old -> new" by key.

    Args:
        saved: The plan as the checkpoint holds it, in JSON types.
        plan: The plan of the resume.
    """
    now = json.loads(json.dumps(asdict(plan)))
    usual = {name: json.loads(json.dumps(asdict(kind()))) for name, kind in SECTIONS.items()}
    return {
        f"{section}.{key}": f"{before} -> {value}"
        for section in SECTIONS
        for key, value in now[section].items()
        # A key that is younger than the checkpoint had its default then.
        if (before := saved[section].get(key, usual[section][key])) != value
    }
