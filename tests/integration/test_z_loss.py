"""The z-loss changes what is learned, and not what is told."""

from pathlib import Path
from typing import Any

import pytest

from tests.command import code_of
from tests.integration.test_bad_input import TOML
from trainer.run_folder import RunFolder


def test_a_z_loss_moves_the_gradient_and_stays_out_of_the_loss_that_is_told(
    tmp_path: Path, tiny_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(TOML.format(store=tiny_store))
    lines: list[list[dict[str, Any]]] = []
    for name, z_loss in (("off", "0.0"), ("on", "0.1")):
        words = ("--set", f"run.name={name}", "--set", f"trainer.z_loss={z_loss}")
        assert code_of("train", "run.toml", *words) == 0
        told = RunFolder(tmp_path / "runs" / name).lines()
        lines.append([line for line in told if line["kind"] == "step"])
    off, on = lines
    assert off[0]["train/loss"] == pytest.approx(on[0]["train/loss"], rel=1e-6)
    assert abs(on[0]["train/grad_norm"] / off[0]["train/grad_norm"] - 1) > 1e-3
    assert off[1]["train/loss"] != on[1]["train/loss"]
