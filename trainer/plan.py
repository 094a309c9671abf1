"""All that a worker needs to know to take part in a run: plain values, the same for every rank."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from model.config import ModelConfig
from pipeline.growing import BUILDS
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
        building: What is being built into the store while the run trains (pipeline/publish.py);
            empty where it was finished before, and then `store_fingerprint` is known.
        cache: Folder that keeps the parts of a remote store on each machine; empty: none.
        cache_bytes: What it may hold.
        reshard: A checkpoint of other rows, or of another segment, may be gone on from.
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
    building: str = ""
    cache: str = ""
    cache_bytes: int = 0
    reshard: bool = False
    init: str = ""

    def identity(self) -> dict[str, Any]:
        """What makes the run this run: a resume with another value of any of these is refused."""
        model = asdict(self.model)
        model.pop("memory")
        parts = {
            "data.store_fingerprint": f"{BUILDS}{self.building}"
            if self.building
            else self.store_fingerprint,
            "tokenizer.sha256": self.tokenizer_sha256,
            "run.seed": self.seed,
            **{f"rows.{key}": value for key, value in self.layout.identity().items()},
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
RESHARDED = ("rows.rows", "rows.segment")


def check_identity(
    saved: dict[str, Any], wanted: dict[str, Any], *, where: str, reshard: bool = False
) -> None:
    """Refuse to go on from a checkpoint of another run.

    Args:
        saved: `TrainPlan.identity` as the checkpoint holds it.
        wanted: The same of the run that would go on.
        where: The checkpoint, for the message.
        reshard: Other rows and another segment are wanted.

    Raises:
        ConfigError: Names every key that differs, with both values.
    """
    # A key that is younger than the checkpoint had its default then; one that is out of use has it.
    saved, wanted = (
        {key: value for key, value in DEFAULTS.items() if key in other} | mine
        for mine, other in ((saved, wanted), (wanted, saved))
    )
    keys = [
        key
        for key in sorted(saved.keys() | wanted.keys())
        if saved.get(key) != wanted.get(key)
        and not (reshard and key in RESHARDED)
        and not _was_finished_since(key, saved, wanted)
    ]
    differ = [f"{key} is {saved.get(key)!r} there and {wanted.get(key)!r} here" for key in keys]
    may_deal = bool(keys) and set(keys) <= set(RESHARDED)
    if differ:
        raise ConfigError(
            f"{where} belongs to another run: {'; '.join(differ)}. Set these back, "
            + ("deal the documents anew with `longrow resume --reshard`, " if may_deal else "")
            + "or give the run another name to start anew."
        )


def _was_finished_since(key: str, saved: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a store had no fingerprint yet: what was read of it is compared part by part."""
    was, now = str(saved.get(key)), str(wanted.get(key))
    return key == "data.store_fingerprint" and was.startswith(BUILDS) > now.startswith(BUILDS)


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
    } | {
        f"rows.{key}": f"{saved['layout'][key]} -> {now['layout'][key]}"
        for key in ("rows", "segment")
        if saved["layout"][key] != now["layout"][key]
    }
