"""A run that waits for its data is stopped like one that steps: at once, with its step saved."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.client import RowClient
from tests.tiny_runs import tiny_plan
from trainer.board import Board, LocalReporter
from trainer.checkpoint import checkpoints, step_of
from trainer.group import Group
from trainer.loop import train
from trainer.run_folder import RunFolder
from trainer.settings import EvaluateSettings


@pytest.mark.parametrize("done", [0, 3])
def test_a_run_whose_next_batch_does_not_come_stops_with_its_last_step_saved(
    tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    plan = replace(tiny_plan(tiny_store, tmp_path / "run", steps=10), evaluate=EvaluateSettings())
    board, looks, real = Board(), list[int](), RowClient.ready

    def ready(client: RowClient) -> bool:
        if client.state.step < done:
            return real(client)
        looks.append(client.state.step)
        if len(looks) == 3:
            board.ask_stop("a test wants it")
        assert len(looks) < 100  # it is not heard
        return False

    monkeypatch.setattr(RowClient, "ready", ready)
    verdict = train(
        plan, Group(device=torch.device("cpu")), LocalReporter(board), lambda _rows: None
    )
    assert (verdict.status, verdict.step, verdict.reason) == ("stopped", done, "a test wants it")
    folder = RunFolder(plan.folder)
    assert [step_of(path) for path in checkpoints(folder.checkpoints)] == [done]
    assert [line["step"] for line in folder.lines()] == list(range(1, done + 1))
