"""Training stands still for a copy to host memory and no longer: steps go on beside a save."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.server import RowServer
from tests.tiny_runs import tiny_plan
from trainer import saver
from trainer.board import Board, LocalReporter
from trainer.checkpoint import checkpoints, faults, step_of
from trainer.group import Group
from trainer.loop import train
from trainer.run_folder import RunFolder
from trainer.settings import EvaluateSettings

SAVED, FURTHER, WAIT_S = 5, 9, 30.0


class Told(LocalReporter):
    """Lets go of a save when a step far past it is told of."""

    def __init__(self) -> None:
        super().__init__(Board())
        self.further = threading.Event()

    def line(self, values: dict[str, Any]) -> None:
        super().line(values)
        if values["step"] >= FURTHER:
            self.further.set()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (RunFolder, "sync_lines"),  # the lines before it go to the disk
        (RowServer, "digest_of_next"),  # the documents of the next batch are read
        (saver, "check_finite"),
        (saver, "write_part"),
        (saver, "commit"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_steps_are_taken_while_a_save_is_at_any_of_its_stages(
    tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    plan = replace(
        tiny_plan(tiny_store, tmp_path / "run", steps=2 * SAVED), evaluate=EvaluateSettings()
    )
    reporter, real = Told(), getattr(owner, name)
    held: list[bool] = []

    def hold(*args: Any, **options: Any) -> Any:
        if not held:
            held.append(reporter.further.wait(WAIT_S))
        return real(*args, **options)

    monkeypatch.setattr(owner, name, hold)
    verdict = train(plan, Group(device=torch.device("cpu")), reporter, lambda _rows: None)
    assert verdict.status == "done"
    assert held == [True]
    found = checkpoints(RunFolder(plan.folder).checkpoints)
    assert [(step_of(path), faults(path)) for path in found] == [(SAVED, []), (2 * SAVED, [])]
