"""When the clock wants an evaluation, and what it does where there is nothing to score yet."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.store import Store
from tests.tiny_runs import tiny_plan
from trainer.board import Board, LocalReporter
from trainer.consent import Consent
from trainer.counters import Counters
from trainer.examiner import Examiner
from trainer.group import Group
from trainer.later import Later
from trainer.run_folder import RunFolder
from trainer.settings import EvaluateSettings


def test_an_evaluation_that_cannot_be_made_yet_is_put_off_and_forgotten(
    tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(
        tiny_plan(tiny_store, tmp_path / "run", steps=10), evaluate=EvaluateSettings(minutes=1.0)
    )
    group, reporter = Group(device=torch.device("cpu")), LocalReporter(Board())
    now = [0.0]
    training: Any = SimpleNamespace(step=5, counters=Counters())
    ledger: Any = SimpleNamespace(counters=Counters())
    examiner = Examiner(
        plan,
        group,
        Store.open(str(tiny_store)),
        training,
        attempt=1,
        reporter=reporter,
        ledger=ledger,
        consent=Consent(group, reporter),
        tell=lambda _line: None,
        later=Later(lambda _: None),
        clock=lambda: now[0],
    )
    monkeypatch.setattr("trainer.examiner.whole_store", lambda *_args, **_options: None)
    assert not examiner.wants_soon()
    now[0] = 61.0
    assert examiner.wants_soon()
    examiner.plan_next()
    assert RunFolder(plan.folder).steps_by_minutes() == [6]
    training.step = 6
    assert examiner.score_if_due()
    assert RunFolder(plan.folder).steps_by_minutes() == []
    assert not examiner.wants_soon()
    assert examiner.counters().unscored_s == 0
    now[0] = 122.0
    assert examiner.wants_soon()
    assert examiner.counters().unscored_s == 61.0
