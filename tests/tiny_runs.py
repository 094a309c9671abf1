"""A run as small as one can be, as a plan for this process and as a config for processes."""

from dataclasses import replace
from pathlib import Path

from model.config import ModelConfig
from model.transformer_xl import TransformerXL
from model.weights import save_weights
from pipeline.layout import Layout
from pipeline.store import Store
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder
from trainer.settings import (
    CheckpointSettings,
    ClusterSettings,
    EvaluateSettings,
    OptimizerSettings,
    TrainerSettings,
)

# Of every run that is started by `longrow train`; a test adds the sections it is about.
TOML = """
[run]
name = "run"
folder = "{folder}"
[data]
store = "{store}"
[rows]
rows = 4
segment = 16
[model]
layers = 2
width = 16
heads = 2
head_width = 8
inner_width = 32
memory = 20
dropout = 0.1
"""


def tiny_plan(store: Path, folder: Path, *, steps: int) -> TrainPlan:
    """The same run as a plan, its folder made."""
    RunFolder(folder).create()
    opened = Store.open(str(store))
    return TrainPlan(
        folder=str(folder),
        store=str(store),
        store_fingerprint=opened.fingerprint,
        tokenizer_sha256=opened.manifest.tokenizer,
        launch="test",
        mlflow_run_id="",
        seed=3,
        layout=Layout(rows=4, segment=16, seed=3),
        model=ModelConfig(
            vocab_size=opened.vocab_size,
            layers=2,
            width=16,
            heads=2,
            head_width=8,
            inner_width=32,
            memory=20,
            dropout=0.1,
            attention_dropout=0.1,
        ),
        trainer=TrainerSettings(steps=steps, threads=1),
        optimizer=OptimizerSettings(learning_rate=1e-2, warmup_steps=3),
        evaluate=EvaluateSettings(every=4),
        checkpoint=CheckpointSettings(every=5, keep_best=0),
        cluster=ClusterSettings(launcher="local"),
    )


def tiny_weights(store: Path, folder: Path) -> None:
    """The model of the same run as a folder of weights, not trained, far from its start."""
    config = replace(tiny_plan(store, folder.with_name("plan"), steps=1).model, init_std=0.3)
    save_weights(TransformerXL(config, seed=1), folder)
