"""An error of one rank while all of them score is an error of all, wherever it is met."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from model.transformer_xl import TransformerXL
from pipeline.errors import DataError
from pipeline.store import Store
from tests.thread_group import of_ranks
from tests.tiny_runs import tiny_plan
from trainer import examiner as module
from trainer.board import Board, LocalReporter
from trainer.consent import Consent
from trainer.counters import Counters
from trainer.evaluation import sum_rows
from trainer.examiner import Examiner
from trainer.group import Group
from trainer.later import Later
from trainer.run_folder import RunFolder
from trainer.settings import EvaluateSettings
from trainer.start import DoomedError


def scored(store: Path, run: Path) -> list[bool | Exception]:
    """What two ranks find that score step 5."""
    plan = replace(tiny_plan(store, run, steps=10), evaluate=EvaluateSettings(every=5))

    def act(group: Group) -> bool:
        reporter = LocalReporter(Board())
        training: Any = SimpleNamespace(
            step=5, counters=Counters(), model=TransformerXL(plan.model, seed=1), average=[]
        )
        ledger: Any = SimpleNamespace(
            counters=Counters(), flush=lambda: None, restart_clock=lambda: None
        )
        return Examiner(
            plan,
            group,
            Store.open(str(store)),
            training,
            attempt=1,
            reporter=reporter,
            ledger=ledger,
            consent=Consent(group, reporter),
            tell=lambda _line: None,
            later=Later(lambda _: None),
            clock=lambda: 0.0,
        ).score_if_due()

    return of_ranks(2, act)


def doomed_alike(found: list[bool | Exception], text: str) -> None:
    for error in found:
        assert isinstance(error, DoomedError), found
        assert text in error.reason


def test_two_ranks_in_threads_score_as_two_processes_do(tiny_store: Path, tmp_path: Path) -> None:
    assert scored(tiny_store, tmp_path) == [True, True]


@pytest.mark.parametrize("batch", [0, 1, -1])
def test_an_error_at_any_batch_of_one_rank_is_raised_by_all(
    tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    def fails(*args: Any, mine: tuple[int, int], should_stop: Callable[[], bool]) -> Any:
        asked = [0]

        def ask() -> bool:
            if mine[0] and asked[0] == batch:
                raise DataError("a part is damaged")
            asked[0] += 1
            return should_stop()

        found = sum_rows(*args, mine=mine, should_stop=ask)
        if mine[0] and found is not None:
            raise DataError("a part is damaged")
        return found

    monkeypatch.setattr(module, "sum_rows", fails)
    doomed_alike(scored(tiny_store, tmp_path), "a part is damaged")


def test_an_error_of_the_rank_that_writes_is_raised_by_all(
    tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object, **__: object) -> None:
        raise DataError("sizes of documents are damaged")

    monkeypatch.setattr(module, "scores_of", damaged)
    doomed_alike(scored(tiny_store, tmp_path), "sizes of documents")


@pytest.mark.parametrize("name", ["by_minutes.json", "step_00000005.json"])
def test_a_damaged_evaluation_of_the_folder_is_told_by_all(
    tiny_store: Path, tmp_path: Path, name: str
) -> None:
    RunFolder(tmp_path).create()
    (tmp_path / "evaluations" / name).write_text('{"steps"')
    (tmp_path / "metrics.jsonl").write_text('{"kind": "evaluation", "step": 5}\n')
    doomed_alike(scored(tiny_store, tmp_path), f"{name} is damaged")
