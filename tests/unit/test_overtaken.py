"""An attempt that was overtaken while it scored leaves the files of the other one alone."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_runs import tiny_plan
from trainer.board import Board, LocalReporter
from trainer.group import Group
from trainer.loop import train
from trainer.run_folder import Attempt, RunFolder
from trainer.settings import EvaluateSettings


class At(LocalReporter):
    """Does something when the line of `step` is told."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        super().__init__(Board())
        self._step, self._act = step, act

    def line(self, values: dict[str, Any]) -> None:
        super().line(values)
        if values["step"] == self._step and values["kind"] == "step":
            self._act()


@pytest.mark.parametrize("minutes", [False, True])
def test_nothing_of_the_other_attempt_is_written_over(
    tiny_store: Path, tmp_path: Path, *, minutes: bool
) -> None:
    scoring = EvaluateSettings(minutes=1.0) if minutes else EvaluateSettings(every=4)
    plan = replace(tiny_plan(tiny_store, tmp_path / "run", steps=20), evaluate=scoring)
    folder, now, kept = RunFolder(plan.folder), [0.0], list[tuple[int, bytes]]()
    files = (
        folder.metrics,
        folder.evaluation(4),
        folder.evaluations / "by_minutes.json",
    )

    def overtake() -> None:
        other = Attempt(
            number=2, launch="other", start_step=0, world_size=1, threads=1, resumed_from=""
        )
        folder.write_json("attempts/0002.json", asdict(other))
        for file in files[1:]:
            file.write_text('{"steps": [9]}')
        kept.extend((file.stat().st_ino, file.read_bytes()) for file in files)
        now[0] = 100.0

    group = Group(device=torch.device("cpu"))
    # The line of step 2 is told in step 3, after which the clock wants a score of the next one.
    verdict = train(
        plan, group, At(2 if minutes else 4, overtake), lambda _rows: None, clock=lambda: now[0]
    )
    assert (verdict.status, verdict.kind) == ("failed", "overtaken")
    assert [(file.stat().st_ino, file.read_bytes()) for file in files] == kept
