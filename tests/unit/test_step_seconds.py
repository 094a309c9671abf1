"""The seconds of a step are its own, whether its line is written a step late or at once."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import trainer.ledger
from trainer.counters import Counters
from trainer.ledger import Entry, Ledger
from trainer.step import StepResult

TOOK = [1.0, 7.0, 2.0, 4.0]  # seconds of steps 1 to 4


def entry(step: int) -> Entry:
    rows: Any = SimpleNamespace(epoch=np.zeros(1), doc_id=np.array([3]), sources=(None,))
    batch: Any = SimpleNamespace(offset=np.ones((1, 2)), doc_id=np.full((1, 2), 3))
    number = torch.tensor(1.0, dtype=torch.float64)
    result = StepResult(
        loss=number,
        norm=number,
        applied=torch.tensor(True),
        usable=number,
        seen=torch.ones(2, dtype=torch.float64),
    )
    return Entry(
        step=step, result=result, batch=batch, rows=rows, targets=10, rate=0.1, waited_s=0.0
    )


@pytest.mark.parametrize("read_at_once", [(), (2,), (4,), (1, 2, 3, 4)])
def test_each_step_has_its_own_seconds(
    read_at_once: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(trainer.ledger.time, "perf_counter", lambda: now[0])
    group: Any = SimpleNamespace(
        rank=0, world_size=1, device=torch.device("cpu"), sum_=lambda mine: mine
    )
    lines: list[dict[str, Any]] = []
    ledger = Ledger(
        group,
        Counters(),
        first_row=0,
        write=lines.append,
        note=print,
        usage=lambda seconds: {"seconds": seconds},
    )
    for step, seconds in enumerate(TOOK, 1):
        now[0] += seconds
        ledger.add(entry(step))
        if step in read_at_once:  # before a checkpoint or an evaluation
            ledger.flush()
    ledger.flush()
    assert [line["train/step_seconds"] for line in lines] == TOOK
    assert [line["train/tokens_per_second"] for line in lines] == [10 / took for took in TOOK]
    assert [line["seconds"] for line in lines] == TOOK
