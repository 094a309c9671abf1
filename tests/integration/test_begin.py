"""How a run may begin: tried out first, or with the weights of another one."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch

from model.transformer_xl import TransformerXL
from tests.command import code_of
from trainer.checkpoint import checkpoints, load_weights, read_state
from trainer.load import load_model
from trainer.run_folder import RunFolder

TOML = """
[run]
name = "{name}"
folder = "{folder}"
seed = {seed}
[data]
store = "{store}"
[rows]
rows = 4
segment = 16
[model]
layers = 1
width = 16
heads = 2
head_width = 8
inner_width = 16
memory = 8
[trainer]
steps = {steps}
threads = 1
[optimizer]
warmup_steps = 0
learning_rate = 1e-3
[checkpoint]
every = 1
keep_last = 9
[tracking]
uri = "{uri}"
[cluster]
launcher = "local"
"""


def config(folder: Path, store: Path, name: str, *, steps: int = 3, seed: int = 0) -> str:
    path = folder / f"{name}.toml"
    uri = f"sqlite:///{folder}/mlflow.db"
    path.write_text(
        TOML.format(name=name, folder=folder, store=store, steps=steps, seed=seed, uri=uri)
    )
    return str(path)


def test_a_dry_run_says_what_the_run_takes_and_writes_nothing(
    tiny_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, tiny_store, "real")
    before = sorted(tmp_path.rglob("*"))
    assert code_of("train", path, "--dry-run", "--json", "--set", "trainer.attention=plain") == 0
    assert sorted(tmp_path.rglob("*")) == before
    out = capsys.readouterr().out.splitlines()
    told = json.loads(out[-1])
    assert out[0].split()[0] == "training"
    steps = tomllib.loads(Path(path).read_text())["trainer"]["steps"]
    assert told["training_seconds"] == pytest.approx(steps * told["step_seconds"])
    assert code_of("train", path) == 0
    newest = checkpoints(tmp_path / "real" / "checkpoints")[-1]
    tensors = sum(file.stat().st_size for file in newest.glob("*.safetensors"))
    assert told["checkpoint_bytes"] == pytest.approx(tensors, rel=0.1)
    first = next(RunFolder(tmp_path / "real").lines())
    assert told["first_loss"] == pytest.approx(first["train/loss"], rel=1e-6)
    assert told["attention"] == "plain"
    assert told["tokens_per_step"] == 64
    weights = load_model(newest, device=torch.device("cpu")).model.parameters()
    assert told["parameters"] == sum(weight.numel() for weight in weights)
    speed = first["train/model_flops_per_second"] * first["train/step_seconds"]
    assert told["flops_per_step"] == pytest.approx(speed)


def test_a_run_begins_with_the_weights_of_another_and_with_nothing_else(
    tiny_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("train", config(tmp_path, tiny_store, "parent")) == 0
    child = config(tmp_path, tiny_store, "child", steps=1, seed=5)
    assert code_of("train", child, "--init", str(tmp_path / "parent")) == 0
    parent = checkpoints(tmp_path / "parent" / "checkpoints")[-1]
    (last,) = checkpoints(tmp_path / "child" / "checkpoints")
    state = read_state(last)
    assert state["step"] == 1
    assert Path(state["plan"]["init"]) == parent
    taken = load_model(parent, device=torch.device("cpu")).model
    moved = TransformerXL(taken.config)
    load_weights(last, moved)
    # AdamW's first step moves a weight by at most the learning rate, and by its decay.
    for mine, theirs in zip(moved.parameters(), taken.parameters(), strict=True):
        assert float((mine - theirs).detach().abs().max()) <= 1.1e-3
    capsys.readouterr()
    # The same command again goes on, and without --init the run still knows how it began.
    more = ("--set", "trainer.steps=2")
    assert code_of("train", child, *more, "--init", str(tmp_path / "parent")) == 0
    assert "goes on with its own weights" in capsys.readouterr().err
    assert code_of("train", child, "--set", "trainer.steps=3") == 0
    state = read_state(checkpoints(tmp_path / "child" / "checkpoints")[-1])
    assert (state["step"], Path(state["plan"]["init"])) == (3, parent)
    tags = _tags(tmp_path, "child")
    assert (tags["longrow.parent_run"], tags["longrow.parent_step"]) == ("parent", "3")
    known = RunFolder(tmp_path / "parent").read_json("mlflow.json") or {}
    assert tags["mlflow.parentRunId"] == known["run_id"]


def test_what_a_checkpoint_holds_is_shown_verified_and_pinned(
    tiny_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("train", config(tmp_path, tiny_store, "run", steps=2)) == 0
    run = tmp_path / "run"
    newest = checkpoints(run / "checkpoints")[-1]
    assert code_of("pin", str(run)) == 0  # a run's newest
    for what in (run, newest):
        assert code_of("verify", str(what)) == 0
    capsys.readouterr()
    assert code_of("show", str(newest), "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["step"], told["pinned"], told["faults"]) == (2, True, [])
    assert told["counters.scored"] == 0  # its own evaluation came after it
    assert code_of("show", str(run)) == 0
    assert f"{newest.name}" in (shown := capsys.readouterr().out)
    assert shown.count("whole, pinned") == 1


def _tags(folder: Path, name: str) -> dict[str, str]:
    from mlflow.tracking import MlflowClient

    known = RunFolder(folder / name).read_json("mlflow.json") or {}
    return MlflowClient(tracking_uri=known["uri"]).get_run(known["run_id"]).data.tags


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(
    tiny_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("train", config(tmp_path, tiny_store, "parent", steps=1)) == 0
    child = config(tmp_path, tiny_store, "child")
    wider = ("--set", "model.width=32")
    for more in ((), ("--dry-run",)):
        assert code_of("train", child, *wider, "--init", str(tmp_path / "parent"), *more) == 2
        assert "model.width is 16 there and 32 here" in capsys.readouterr().err
    assert code_of("train", child, "--init", str(tmp_path / "nowhere")) == 2
    assert not (tmp_path / "child").exists()


def test_other_weights_for_a_run_that_is_there_are_refused_and_not_forgotten(
    tiny_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("parent", "bare"):
        assert code_of("train", config(tmp_path, tiny_store, name, steps=1)) == 0
    bare = config(tmp_path, tiny_store, "bare", steps=2)
    assert code_of("train", bare, "--init", str(tmp_path / "parent")) == 2
    assert "began with weights drawn from its seed" in capsys.readouterr().err
    assert code_of("resume", str(tmp_path / "bare"), "--set", "run.init='parent'") == 2
    child = config(tmp_path, tiny_store, "child", steps=1)
    assert code_of("train", child, "--init", str(tmp_path / "parent")) == 0
    assert code_of("train", child, "--init", str(tmp_path / "bare")) == 2
    assert "would count for nothing" in capsys.readouterr().err


def test_a_run_that_died_before_its_first_checkpoint_begins_with_the_same_weights_again(
    tiny_store: Path, tmp_path: Path
) -> None:
    assert code_of("train", config(tmp_path, tiny_store, "parent", steps=1)) == 0
    child = config(tmp_path, tiny_store, "child", steps=1, seed=5)
    assert code_of("train", child, "--init", str(tmp_path / "parent")) == 0
    first = next(line["train/loss"] for line in RunFolder(tmp_path / "child").lines())
    for path in checkpoints(tmp_path / "child" / "checkpoints"):
        shutil.rmtree(path)  # as if it had died at once
    assert code_of("train", child) == 0
    assert next(line["train/loss"] for line in RunFolder(tmp_path / "child").lines()) == first
