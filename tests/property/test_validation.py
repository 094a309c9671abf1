"""Held-out documents are scored once, whatever the rows, the segment and the ranks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.batch import NO_TARGET
from pipeline.layout import rows_of_rank
from pipeline.server import validation_batches
from tests.streams import Positions, corpora, inputs_of


@given(documents=corpora(), rows=st.integers(1, 8), segment=st.integers(1, 12))
def test_every_target_is_scored_once_in_store_order(
    documents: Positions, rows: int, segment: int
) -> None:
    batches = list(validation_batches(documents, rows=rows, segment=segment))
    lines: list[list[tuple[int, ...]]] = [[] for _ in range(rows)]
    for step, batch in enumerate(batches):
        assert batch.step == step
        assert batch.tokens.shape == (rows, segment)
        pad = batch.doc_id == -1
        assert (batch.targets[pad] == NO_TARGET).all()
        assert (batch.targets[~pad] >= 0).all()
        assert (batch.tokens[pad] == documents.bos).all()
        assert (batch.offset[pad] == 0).all()
        np.testing.assert_array_equal(batch.reset, batch.offset[:, 0] == 0)
        assert not pad.all(), "a step without any target"
        for row, line in enumerate(lines):
            columns = (batch.tokens, batch.targets, batch.doc_id, batch.offset)
            line.extend(zip(*(column[row].tolist() for column in columns), strict=True))
    # By the definition: store order, each to the row with the fewest tokens; then pads.
    expected: list[list[tuple[int, ...]]] = [[] for _ in range(rows)]
    for doc_id in documents.doc_ids("validation").tolist():
        row = min(range(rows), key=lambda row: (len(expected[row]), row))
        inputs = inputs_of(documents, doc_id, 0)
        expected[row] += [(i.token, i.target, i.doc_id, i.offset) for i in inputs]
    for line, real in zip(lines, expected, strict=True):
        assert line[: len(real)] == real
        assert all(doc_id == -1 for _, _, doc_id, _ in line[len(real) :])


@given(documents=corpora(), segment=st.integers(1, 12), world_size=st.sampled_from([1, 2, 3, 6]))
def test_every_rank_takes_equally_many_steps_and_its_own_rows(
    documents: Positions, segment: int, world_size: int
) -> None:
    whole = list(validation_batches(documents, rows=6, segment=segment))
    for rank in range(world_size):
        lo, hi = rows_of_rank(6, rank=rank, world_size=world_size)
        mine = list(validation_batches(documents, rows=6, segment=segment, mine=(lo, hi)))
        for batch, all_rows in zip(mine, whole, strict=True):
            for name in ("tokens", "targets", "doc_id", "offset", "reset", "epoch"):
                np.testing.assert_array_equal(getattr(batch, name), getattr(all_rows, name)[lo:hi])


def test_fewer_documents_than_rows_and_none_at_all() -> None:
    one = Positions([5, 3], held_out=[1])
    batches = list(validation_batches(one, rows=4, segment=3))
    assert len(batches) == 2
    assert sum((batch.targets >= 0).sum() for batch in batches) == 4
    assert list(validation_batches(Positions([5]), rows=4, segment=3)) == []
