"""A dry run tells all that it promises, each number as the definition has it."""

import json
import tomllib
from pathlib import Path

import pytest

from pipeline.store import Store
from tests.command import code_of
from tests.tiny_runs import TOML

REST = """
[trainer]
steps = 50
threads = 1
[cluster]
launcher = "local"
"""


def test_config_sizes_and_lengths_are_told(
    tiny_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text((TOML + REST).format(folder=tmp_path / "runs", store=tiny_store))
    assert code_of("train", str(path), "--dry-run", "--json", "--set", "model.width=32") == 0
    said = capsys.readouterr()
    resolved = tomllib.loads(said.err)
    assert (resolved["model"]["width"], resolved["rows"]["rows"]) == (32, 4)
    assert resolved["checkpoint"]["keep_last"] == 3  # what the file leaves out, too
    told = json.loads(said.out.splitlines()[-1])
    step = 4 * 16
    inputs = int((Store.open(str(tiny_store)).num_tokens("train") + 1).sum())
    assert told["tokens_per_step"] == step
    assert told["steps_per_epoch"] == pytest.approx(inputs / step)
    assert told["epochs"] == pytest.approx(50 * step / inputs)
    memory = 2 * 4 * 20 * 32 * 4  # layers, rows, states, width, bytes
    of_weights = 4 * told["parameters"]
    assert told["device_state_bytes"] == pytest.approx(4 * of_weights + memory, rel=0.01)
    assert told["checkpoint_bytes"] == pytest.approx(3 * of_weights + memory, rel=0.01)
    assert told["device_peak_bytes"] > told["device_state_bytes"]
    assert told["flops_per_token"] == pytest.approx(told["flops_per_step"] / step)
    words = {line.split("  ")[0] for line in said.out.splitlines()[:-1] if line}
    assert words >= {"training", "model", "memory", "checkpoint", "a step", "an epoch"}
    assert not (tmp_path / "runs").exists()
