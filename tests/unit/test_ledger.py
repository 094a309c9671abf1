"""A step's line tells of that step, whenever it is written."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.batch import Batch
from pipeline.layout import Layout
from pipeline.rows_state import initial_state
from trainer.counters import Counters
from trainer.group import Group
from trainer.ledger import Entry, Ledger
from trainer.step import StepResult


@given(
    seconds=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    read_at_once=st.sets(st.integers(1, 12)),
    left_out=st.dictionaries(st.integers(0, 11), st.integers(1, 9)),
)
def test_a_step_has_its_own_seconds_however_soon_it_is_written(
    seconds: Sequence[int], read_at_once: set[int], left_out: dict[int, int]
) -> None:
    now = 0.0
    lines: list[dict[str, Any]] = []
    ledger = Ledger(
        Group(device=torch.device("cpu")),
        Counters(),
        first_row=0,
        write=lines.append,
        note=pytest.fail,
        usage=lambda _: {},
        clock=lambda: now,
    )
    for step, took in enumerate(seconds, start=1):
        if step - 1 in left_out:  # an evaluation, between two steps
            ledger.flush()
            now += left_out[step - 1]
            ledger.restart_clock()
        now += took
        ledger.add(an_entry(step))
        if step in read_at_once:  # a save
            ledger.flush()
    ledger.flush()
    assert [line["train/step_seconds"] for line in lines] == list(seconds)
    assert [line["train/tokens_per_second"] for line in lines] == [4 / took for took in seconds]


def an_entry(step: int) -> Entry:
    zeros = np.zeros((1, 4), dtype=np.int64)
    return Entry(
        step=step,
        result=StepResult(
            loss=torch.ones((), dtype=torch.float64),
            norm=torch.ones(()),
            applied=torch.tensor(True),
            usable=torch.ones(()),
            seen=torch.ones(2, dtype=torch.float64),
        ),
        batch=Batch(
            step=step,
            rows=(0, 1),
            tokens=zeros.astype(np.uint16),
            targets=zeros.astype(np.int32),
            doc_id=zeros,
            offset=zeros,
            reset=np.ones(1, dtype=np.bool_),
            epoch=zeros[:, 0],
        ),
        rows=initial_state(Layout(rows=1, segment=4)),
        targets=4,
        rate=0.1,
        waited_s=0.0,
    )
