"""`make gpu`, on a CPU and small: it must run the first time that somebody has a GPU."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from jobs import gpu_equal, gpu_run
from jobs.gpu import Report
from model.attention import Sight
from model.attention_whole import whole_attention
from trainer.checkpoint import checkpoints
from trainer.group import Group
from trainer.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
# Of the project's packages only those that the script may need.
BARE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {
            "ray", "mlflow", "click", "orjson", "pydantic", "matplotlib", "packaging"
        }:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from jobs.gpu import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_script_runs_whole_with_few_packages(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--quick", "--out", str(tmp_path / "found.json")]
    done = subprocess.run(
        [sys.executable, "-c", BARE, *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = json.loads((tmp_path / "found.json").read_text())["lines"]
    assert Counter(line["section"] for line in lines) == {
        "machine": 1,
        "equality": 12,
        "step": 1,
        "run": 2,
        "ceilings": 1,
        "training step": 8,
    }
    assert all(line["ok"] for line in lines)
    assert f"{len(lines)} lines, 0 failed" in done.stdout


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    from jobs.gpu import main

    assert main([]) == 2
    assert "--device cpu" in capsys.readouterr().err


def far_by_one(seen: Sight) -> Sight:
    """A query that sees one key more than it may."""
    far = seen.far + 1
    return Sight(far=far, hidden=seen.hidden.roll(-1, dims=1))


def test_a_form_that_sees_too_far_is_told_as_unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(*_: Any, **__: Any) -> Any:
        def attend(q: Any, k: Tensor, v: Tensor, r: Tensor, seen: Sight, drop: None) -> Tensor:
            return whole_attention(q, k, v, r, far_by_one(seen), drop)

        return attend

    monkeypatch.setattr(gpu_equal, "attention_of", of)
    lines = list(gpu_equal.compare(CPU, ("dense",), cases=gpu_equal.CASES[:5]))
    assert len(lines) == len(gpu_equal.ALLOWED)
    assert not any(line["ok"] for line in lines)


@pytest.mark.parametrize(
    ("place", "found"), [("loss", (False, 3, True)), ("tensors", (False, 4, False))]
)
def test_a_resume_that_is_off_by_a_bit_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, found: tuple[bool, int, bool]
) -> None:
    real = gpu_run.train
    calls: list[Group] = []
    wrapped: list[type] = []

    class Seen(DistributedDataParallel):
        def __new__(cls, *_: Any, **__: Any) -> "Seen":
            wrapped.append(cls)
            return super().__new__(cls)

    monkeypatch.setattr("trainer.start.DistributedDataParallel", Seen)

    def train(plan: Any, group: Group, *rest: Any) -> Any:
        calls.append(group)
        verdict = real(plan, group, *rest)
        if len(calls) == 3 and place == "tensors":
            newest = checkpoints(RunFolder(Path(plan.folder)).checkpoints)[-1]
            file = newest / "memory-0.safetensors"
            file.write_bytes(file.read_bytes()[:-1] + b"\x55")
        elif len(calls) == 3:
            lines = Path(plan.folder, "metrics.jsonl")
            told = [json.loads(line) for line in lines.read_text().splitlines()]
            last = [line for line in told if line["kind"] == "step"][-1]
            last["train/loss"] *= 1 + 1e-15
            lines.write_text("".join(json.dumps(line) + "\n" for line in told))
        return verdict

    monkeypatch.setattr(gpu_run, "train", train)
    first, second = gpu_run.checked_run(
        CPU, tmp_path, steps=4, model=gpu_run.SMALL, documents=40, vocab_size=400
    )
    assert first["loss_of_last_5"] > 0
    assert (second["ok"], second["losses_equal"], second["tensors_equal"]) == found
    assert [group.world_size for group in calls] == [1, 1, 1]
    assert len(wrapped) == len(calls)  # each behind DDP


def test_an_error_of_a_section_is_a_line_and_the_others_go_on() -> None:
    report = Report()

    def breaks() -> Any:
        yield {"name": "one", "ok": True}
        raise RuntimeError("no kernel image")

    report.section("first", breaks)
    report.section("second", lambda: [{"name": "two", "ok": True}])
    assert [line["ok"] for line in report.lines] == [True, False, True]
    assert "no kernel image" in report.lines[1]["error"]
    assert not report.ok
