"""A run's page in MLflow says what it is, what it reads, and how to go on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.config import read_config
from jobs.describe_run import Corpus, count_weights, describe, tags_of
from jobs.track import track
from model.config import ModelConfig
from model.transformer_xl import TransformerXL
from pipeline.store import Store
from trainer.mlflow_run import TrackedRun
from trainer.remote_run import open_run
from trainer.tracking import CorpusInput, Tracker

CORPORA = [
    Corpus(
        name="web", url="s3://x/web", fingerprint="f", split=split, documents=1_200, tokens=34_000
    )
    for split in ("train", "validation")
]


def config(**run: Any) -> Any:
    return read_config(
        base={"run": {"name": "mine"} | run, "rows": {"rows": 8, "segment": 32}},
        sets=("trainer.steps=100", "model.layers=3", "model.memory=64", "cluster.workers=2"),
        environment={},
    )


def test_a_description_says_what_and_how_to_go_on() -> None:
    text = describe(config(), "/runs/my runs/mine", CORPORA, weights=1_234_567, building=False)
    for said in (
        "**1,234,567 weights**: 3 layers",
        "memory 64. A token sees up to 224 tokens back.",
        "100 steps of 8 rows of 32 tokens (25,600 tokens), 2 workers.",
        "Corpus `web`, to train on: 1,200 documents, 34,000 tokens.",
        "Corpus `web`, held out: 1,200 documents, 34,000 tokens.",
        "`longrow resume '/runs/my runs/mine'`",
        "`/runs/my runs/mine/checkpoints`",
    ):
        assert said in text
    assert "begins with" not in text


def test_a_description_says_where_the_weights_come_from_and_that_a_corpus_grows() -> None:
    text = describe(config(init="old"), "/r", CORPORA, weights=1, building=True)
    assert "begins with the weights of `old`" in text
    assert "34,000 tokens so far, for it is being built." in text


def test_weights_are_counted_as_the_model_has_them() -> None:
    model = ModelConfig(
        vocab_size=99, layers=2, width=16, heads=2, head_width=8, inner_width=32, memory=4
    )
    made = TransformerXL(model, seed=0)
    assert count_weights(model) == sum(weight.numel() for weight in made.parameters())
    assert next(made.parameters()).device == torch.device("cpu")


def test_tags_tell_runs_apart() -> None:
    tags = tags_of(config(), [*CORPORA, replace(CORPORA[0], name="books")], weights=7)
    assert tags["longrow.corpus"] == "web, books"
    assert tags["longrow.weights"] == "7"
    assert tags["longrow.workers"] == "2"
    assert tags["mlflow.user"]


@pytest.mark.parametrize("remote", [False, True])
def test_both_splits_are_inputs_and_no_parameter_names_the_run(
    tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, remote: bool
) -> None:
    """MLflow drops a second input of the same name and digest."""
    begun: list[TrackedRun] = []
    given: list[CorpusInput] = []

    class Here:
        run_id = "r"

        def datasets(self, inputs: Any) -> None:
            given.extend(inputs)

        def text(self, *_: Any) -> None: ...

        bytes = text

    monkeypatch.setattr(Tracker, "start", lambda _uri, run, **_: begun.append(run) or Here())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    folder = open_run(f"memory:/{tmp_path}/mine" if remote else tmp_path / "mine")
    folder.create()
    track(config(), folder, Store.open(str(tiny_store)), changed={}, warn=print)
    assert [(one.name, one.split) for one in given] == [
        ("store", "train"),
        ("store, held out", "validation"),
    ]
    assert begun[0].params["trainer.steps"] == "100"
    assert not {"run.name", "run.folder"} & set(begun[0].params)
    store = Store.open(str(tiny_store))
    assert f"held out: {len(store.doc_ids('validation'))} documents" in begun[0].description
    assert f"`longrow resume {folder.place}`" in begun[0].description
