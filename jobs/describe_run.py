"""What stands at the head of a run's page in MLflow, and the tags to find it by."""

import getpass
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import torch

from jobs.config import RunConfig
from jobs.entry import DISTRIBUTION
from model.config import ModelConfig
from model.transformer_xl import TransformerXL
from pipeline.files import join
from trainer.run_folder import CHECKPOINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The documents of a split of a store, counted.

    Attributes:
        name: The store's folder.
        url: Where the store is.
        fingerprint: Of the store.
        split: "train" or "validation".
        documents: How many.
        tokens: Their text tokens.
    """

    name: str
    url: str
    fingerprint: str
    split: str
    documents: int
    tokens: int


def count_weights(config: ModelConfig) -> int:
    """Numbers that a model of `config` learns; none of them is made."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in TransformerXL(config).parameters())


def describe(
    config: RunConfig, place: str, corpora: Sequence[Corpus], *, weights: int, building: bool
) -> str:
    """A run in Markdown, as it was when it began.

    Args:
        config: The run.
        place: Its folder, or the URL of that.
        corpora: What it reads, and is scored on.
        weights: `count_weights` of its model.
        building: The corpora were still being built: their counts are of a part.
    """
    model, rows = config.model, config.rows
    sees = model.layers * model.memory + rows.segment
    begins = f" It begins with the weights of `{config.run.init}`." if config.run.init else ""
    quoted = shlex.quote(place)
    so_far = " so far, for it is being built" if building else ""
    what = (
        f"Transformer-XL of **{weights:,} weights**: {model.layers} layers of width "
        f"{model.width}, {model.heads} heads of {model.head_width}, memory {model.memory}. "
        f"A token sees up to {sees:,} tokens back.{begins}"
    )
    trains = (
        f"Begun for {config.trainer.steps:,} steps of {rows.rows} rows of {rows.segment} tokens "
        f"({config.trainer.steps * rows.rows * rows.segment:,} tokens), {_workers(config)}."
    )
    reads = [
        f"Corpus `{one.name}`, {_SPLITS[one.split]}: {one.documents:,} documents, "
        f"{one.tokens:,} tokens{so_far}."
        for one in corpora
    ]
    ways_on = (
        f"To go on with it: `longrow resume {quoted}`. To look: `longrow show {quoted}`. "
        f"Checkpoints: `{join(place, CHECKPOINTS)}`."
    )
    return "\n\n".join([what, trains, *reads, ways_on])


_SPLITS = {"train": "to train on", "validation": "held out"}


def _workers(config: RunConfig) -> str:
    if config.cluster.launcher == "local":
        return "without Ray"
    return f"{config.cluster.workers} worker{'s' if config.cluster.workers > 1 else ''}"


def tags_of(config: RunConfig, corpora: Sequence[Corpus], *, weights: int) -> dict[str, str]:
    """Tags to filter runs by, and who started it and how, as MLflow's list shows it."""
    return {
        "longrow.corpus": ", ".join(dict.fromkeys(one.name for one in corpora)),
        "longrow.weights": str(weights),
        "longrow.workers": str(config.cluster.workers),
        "longrow.version": version(DISTRIBUTION),
        "mlflow.user": _user(),
        "mlflow.source.name": "longrow",
        "mlflow.source.type": "JOB",
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return str(os.getuid())
