"""The model gives the numbers of the published implementations, case by case.

tests/data/oracle holds cases: weights, segments, and what the reference computed for them. More are
read from the folder that LONGROW_ORACLE names, or ../shared/oracle; every case there runs.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.config import ModelConfig
from model.memory import Memory, empty_memory
from model.reach import reach_of
from model.reference import Dialect, config_from_reference, from_reference, to_reference
from model.transformer_xl import TransformerXL
from model.weights import set_weights

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "tests/data/oracle"
GIVEN = Path(os.environ.get("LONGROW_ORACLE", ROOT.parent / "shared/oracle"))


def cases(folder: Path) -> list[Path]:
    return sorted(path.with_suffix("") for path in folder.glob("*.npz"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case as read: its description, its arrays, and a model with its weights."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]
    config: ModelConfig
    model: TransformerXL
    dialect: Dialect

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[name])


def read(path: Path, dtype: torch.dtype) -> Case:
    about = json.loads(path.with_suffix(".json").read_text())
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    config = config_from_reference(about["config"])
    model = TransformerXL(config).to(dtype)
    named = {
        name.removeprefix("param/"): torch.from_numpy(array)
        for name, array in arrays.items()
        if name.startswith("param/")
    }
    set_weights(model, from_reference(named, config))
    prefixed = any(name.startswith("transformer.") for name in named)
    dialect: Dialect = "huggingface" if prefixed else "original"
    return Case(about=about, arrays=arrays, config=config, model=model, dialect=dialect)


def offsets(case: Case, segment: int, before: Tensor) -> Tensor:
    """Tokens since the last reset; the whole stream is one document where nothing resets."""
    B, L = case.arrays[f"seg{segment}/input"].shape
    resets = case.arrays.get(f"seg{segment}/reset", np.zeros((B, L), dtype=bool))
    rows = []
    for row in range(B):
        at, line = int(before[row]), []
        for column in range(L):
            at = 0 if resets[row, column] else at
            line.append(at)
            at += 1
        rows.append(line)
    return torch.tensor(rows)


def check(path: Path, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    case = read(path, dtype)
    double = dtype == torch.float64
    B = case.arrays["seg0/input"].shape[0]
    memory = empty_memory(case.config, B, dtype=dtype)
    # A row that has read nothing may hold anything finite: nothing of it may be seen.
    memory = Memory(states=memory.states + 1e4, usable=memory.usable)
    read_so_far = torch.zeros(B, dtype=torch.int64)
    for number, about in enumerate(case.about["segments"]):
        reach = reach_of(case.config, about["mem_len_setting"])
        offset = offsets(case, number, read_so_far)
        read_so_far = offset[:, -1] + 1
        tokens, targets = case.tensor(f"seg{number}/input"), case.tensor(f"seg{number}/target")
        case.model.zero_grad()
        hidden, memory = case.model(tokens, offset, memory, reach=reach)
        nll = case.model.nll(hidden, targets)
        assert nll.dtype == dtype
        torch.testing.assert_close(
            nll.double(), case.tensor(f"seg{number}/nll_f64"), rtol=0, atol=1e-9 if double else 2e-5
        )
        close = 2e-6 if double else 1e-4
        if f"seg{number}/hidden" in case.arrays:
            wanted = case.tensor(f"seg{number}/hidden").to(dtype)
            torch.testing.assert_close(hidden, wanted, rtol=0, atol=close)
        if f"seg{number}/mems" in case.arrays:
            check_memory(case, number, memory, read_so_far, close)
        if double and any(name.startswith(f"grad/seg{number}/") for name in case.arrays):
            nll.mean().backward()
            check_gradients(case, number)


def check_memory(
    case: Case, number: int, memory: Memory, read_so_far: Tensor, close: float
) -> None:
    wanted = case.tensor(f"seg{number}/mems").to(memory.states.dtype)
    levels, B, M, _ = wanted.shape
    assert levels >= case.config.layers
    seen = torch.minimum(memory.usable, read_so_far)  # older states are another document's
    given = case.arrays.get(f"seg{number}/mems_valid")
    for row in range(B):
        usable = M if given is None else int(given[row])
        assert int(seen[row]) == usable
        torch.testing.assert_close(
            memory.states[:, row, memory.length - usable :],
            wanted[: case.config.layers, row, M - usable :],
            rtol=0,
            atol=close,
        )


def check_gradients(case: Case, number: int) -> None:
    first_names = case.about["tied_parameters"]
    gradients = {
        name: weight.grad
        for name, weight in case.model.named_parameters()
        if weight.grad is not None
    }
    assert len(gradients) == len(list(case.model.parameters()))
    named = to_reference(gradients, case.config, dialect=case.dialect)
    prefix = f"grad/seg{number}/"
    given = [name.removeprefix(prefix) for name in case.arrays if name.startswith(prefix)]
    for name in given:
        if name != "loss_mean_f64":
            wanted = case.tensor(prefix + name).double()
            found = named[first_names.get(name, name)]
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    if case.about["gradient"]["params"] == "all":
        assert set(named) <= set(given)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("path", cases(SHIPPED), ids=lambda path: path.name)
def test_the_model_gives_the_reference_numbers(path: Path, dtype: torch.dtype) -> None:
    check(path, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("path", cases(GIVEN) or [None], ids=lambda path: path and path.name)
def test_the_model_gives_the_reference_numbers_of_the_given_folder(
    path: Path | None, dtype: torch.dtype
) -> None:
    if path is None:
        pytest.skip(f"no cases in {GIVEN}; LONGROW_ORACLE names a folder with some")
    check(path, dtype)


def test_the_shipped_cases_are_there() -> None:
    assert {"a_plain", "b_longmem", "j_row_reset_boundary", "k_row_reset_mid"} <= {
        path.name for path in cases(SHIPPED)
    }
