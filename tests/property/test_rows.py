"""Rows read whole documents in order, lose nothing, and resume exactly."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.layout import Layout, RowsError, rows_of_rank
from pipeline.lengths import Lengths
from pipeline.rows import advance, initial_state, next_reading, state_after
from pipeline.server import RowServer, lengths_of
from tests.streams import (
    Positions,
    assert_equal_batches,
    assert_resumes_exactly,
    batch_by_definition,
    inputs_of,
    runs,
    streams_by_definition,
    through_json,
    walk,
)

Run = tuple[Positions, Layout]


@given(run=runs(), steps=st.integers(1, 30))
def test_rows_read_what_the_definition_says(run: Run, steps: int) -> None:
    documents, layout = run
    streams = streams_by_definition(documents, layout, steps)
    server = RowServer(documents, layout)
    for step, (batch, _) in enumerate(walk(server, server.initial_state(), steps)):
        assert_equal_batches(batch, batch_by_definition(streams, layout, step))


@given(run=runs())
def test_every_token_is_predicted_once_an_epoch_in_order_within_one_row(run: Run) -> None:
    documents, layout = run
    server = RowServer(documents, layout)
    read: list[list[tuple[int, ...]]] = [[] for _ in range(layout.rows)]
    for batch, state in walk(server, server.initial_state(), 10_000):
        for row, line in enumerate(read):
            columns = (batch.tokens, batch.targets, batch.doc_id, batch.offset)
            read_now = zip(*(column[row].tolist() for column in columns), strict=True)
            line.extend(one for one in read_now if one[2] >= 0)  # pads are no inputs
        # All of epoch 0 has been read once it is dealt and no row is inside a document of it.
        inside = state.began < state.step * layout.segment
        if min(source.epoch for source in state.sources) and state.epoch[inside].all():
            break
    whole: Counter[int] = Counter()
    for line in read:
        starts = [place for place, (*_, offset) in enumerate(line) if offset == 0]
        assert starts[:1] == [0]
        for start, end in zip(starts, [*starts[1:], len(line)], strict=True):
            doc_id = line[start][2]
            told = [
                (i.token, i.target, i.doc_id, i.offset) for i in inputs_of(documents, doc_id, 0)
            ]
            assert line[start:end] == told[: end - start]
            assert end == len(line) or end - start == len(told), "a document was cut"
            whole[doc_id] += end - start == len(told)
    assert set(whole) >= set(documents.doc_ids("train").tolist())
    assert min(whole.values()) >= 1


@given(run=runs())
def test_an_epoch_of_a_source_is_dealt_whole_before_its_next_begins(run: Run) -> None:
    documents, layout = run
    server = RowServer(documents, layout)
    state = server.initial_state()
    dealt: list[tuple[int, int]] = []
    for _ in range(60):
        reading, state = next_reading(server.lengths, layout, state)
        dealt += reading.dealt[["epoch", "doc_id"]].tolist()
    for number, doc_ids in enumerate(documents.ids_by_source("train")):
        count, source = len(doc_ids), state.sources[number]
        ours = [(epoch, doc_id) for epoch, doc_id in dealt if doc_id in doc_ids]
        for epoch in range(len(ours) // count):
            pass_ = ours[epoch * count : (epoch + 1) * count]
            assert sorted(pass_) == [(epoch, doc_id) for doc_id in doc_ids.tolist()]
        assert len(ours) == source.epoch * count + source.next_index


@given(run=runs(), steps=st.integers(1, 60))
def test_no_source_of_a_mixture_lacks_or_exceeds_its_share_by_more_than_documents(
    run: Run, steps: int
) -> None:
    documents, layout = run
    server = RowServer(documents, layout)
    state = advance(server.lengths, layout, server.initial_state(), steps)
    dealt = [source.tokens_dealt for source in state.sources]
    longest = int(layout.taken(int(documents.lengths.max())))
    for tokens, weight in zip(dealt, documents.weights, strict=True):
        lack = Fraction(weight, sum(documents.weights)) * sum(dealt) - tokens
        assert -longest < lack <= max(0, (len(dealt) - 1) * longest)


@given(run=runs(), steps=st.integers(0, 12), tail=st.integers(1, 6))
def test_a_resumed_run_goes_on_as_if_never_stopped(run: Run, steps: int, tail: int) -> None:
    assert_resumes_exactly(RowServer(*run), steps=steps, tail=tail)


@given(run=runs(), pieces=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_a_resume_of_a_resume_is_a_resume(run: Run, pieces: list[int]) -> None:
    server = RowServer(*run)
    whole = walk(server, server.initial_state(), sum(pieces))
    state = server.initial_state()
    for steps in pieces:
        state = through_json(state)
        for batch, after in walk(server, state, steps):
            state = after
            expected, expected_state = next(whole)
            assert_equal_batches(batch, expected)
            assert state == expected_state


@given(run=runs(), first=st.integers(0, 80), steps=st.integers(0, 200))
def test_going_ahead_is_walking(run: Run, first: int, steps: int) -> None:
    documents, layout = run
    server = RowServer(documents, layout)
    lengths = server.lengths
    state = advance(lengths, layout, server.initial_state(), first)
    ahead = advance(lengths, layout, state, steps)
    for _ in range(steps):
        before = state
        reading, state = next_reading(lengths, layout, state)
        assert state_after(before, reading) == state
    assert ahead == state


@given(run=runs(), steps=st.integers(1, 40))
def test_nothing_is_dealt_before_a_row_needs_it(run: Run, steps: int) -> None:
    documents, layout = run
    server = RowServer(documents, layout)
    lengths, state = server.lengths, server.initial_state()
    for step in range(steps):
        reading, state = next_reading(lengths, layout, state)
        assert (reading.dealt["began"] < (step + 1) * layout.segment).all()
        assert (state.began < (step + 1) * layout.segment).all()


@given(run=runs(), steps=st.integers(1, 6))
def test_ranks_of_any_world_size_read_the_rows_of_one(run: Run, steps: int) -> None:
    documents, layout = run
    server = RowServer(documents, layout)
    whole = list(walk(server, server.initial_state(), steps))
    for world_size in (n for n in range(1, layout.rows + 1) if layout.rows % n == 0):
        for rank in range(world_size):
            lo, hi = rows_of_rank(layout.rows, rank=rank, world_size=world_size)
            mine = walk(server, server.initial_state(), steps, (lo, hi))
            for (batch, state), (all_rows, expected_state) in zip(mine, whole, strict=True):
                assert state == expected_state
                assert batch.rows == (lo, hi)
                for name in ("tokens", "targets", "doc_id", "offset", "reset", "epoch"):
                    expected = getattr(all_rows, name)[lo:hi]
                    np.testing.assert_array_equal(getattr(batch, name), expected)


@given(run=runs(), count=st.integers(1, 9), steps=st.integers(1, 20))
def test_the_stream_does_not_depend_on_the_size_of_a_block(
    run: Run, count: int, steps: int
) -> None:
    server = RowServer(*run)
    state = server.initial_state()
    single = walk(server, state, steps + count)
    while state.step < steps:
        block = server.read(state, count, (0, server.layout.rows))
        for index in range(block.steps):
            batch, after = next(single)
            assert_equal_batches(block.batch(index), batch)
            state = state_after(state, block.reading(index))
            assert state == after
        assert state == block.after


@given(
    lengths=st.lists(st.integers(2**30, 2**40), min_size=3, max_size=6),
    rows=st.integers(1, 3),
    segment=st.integers(2**29, 2**36),
    first=st.integers(0, 40),
)
def test_positions_beyond_two_billion_are_exact(
    lengths: list[int], rows: int, segment: int, first: int
) -> None:
    source = Lengths(doc_id=np.arange(len(lengths)), num_tokens=np.array(lengths))
    layout = Layout(rows=rows, segment=segment, shuffle="none")
    spans: list[list[tuple[int, int, int]]] = [[] for _ in range(rows)]  # began, end, document
    ends, number = [0] * rows, 0
    while min(ends) < (first + 1) * segment:
        row, document = ends.index(min(ends)), number % len(lengths)
        spans[row].append((ends[row], ends[row] + lengths[document] + 1, document))
        ends[row], number = spans[row][-1][1], number + 1
    start, stop = first * segment, (first + 1) * segment
    expected = [
        (row, max(began, start) - start, max(began, start) - began, document)
        for row in range(rows)
        for began, end, document in spans[row]
        if end > start and began < stop
    ]
    state = advance(source, layout, initial_state(layout), first)
    reading, after = next_reading(source, layout, through_json(state))
    assert reading.pieces[["row", "column", "offset", "doc_id"]].tolist() == expected
    assert reading.pieces["count"].sum() == rows * segment
    assert after.began.tolist() == [line[-1][0] for line in spans]
    assert after.sources[0].tokens_dealt == sum(ends)


CORPUS = [5, 9, 3, 7, 11, 20]
CHANGED = {
    "documents of epoch": Positions([5, 9]),  # more were dealt than there are
    "reads document 4": Positions([*CORPUS, 1], held_out=[4]),  # one that a row reads is gone
    "row 0 has read 18 tokens": Positions([5, 9, 3, 1, 11, 20]),  # more than its document has
    "tokens were dealt": Positions([5, 9, 3, 17, 21, 20]),
}


@pytest.mark.parametrize(("says", "other"), CHANGED.items())
def test_another_corpus_under_a_state_is_refused(says: str, other: Positions) -> None:
    layout = Layout(rows=2, segment=6, shuffle="none")
    state = advance(lengths_of(Positions(CORPUS), "train"), layout, initial_state(layout), 3)
    assert (state.doc_id.tolist(), state.sources[0].next_index) == ([3, 4], 5)
    with pytest.raises(DataError, match=says):
        next_reading(lengths_of(other, "train"), layout, state)


def test_other_rows_or_another_segment_under_a_state_are_refused() -> None:
    layout = Layout(rows=2, segment=6)
    lengths = lengths_of(Positions(CORPUS), "train")
    state = advance(lengths, layout, initial_state(layout), 3)
    with pytest.raises(RowsError, match=r"Set rows\.rows to 2"):
        next_reading(lengths, replace(layout, rows=3), state)
    with pytest.raises(DataError, match=r"rows\.segment"):
        next_reading(lengths, replace(layout, segment=60), state)


def test_fewer_documents_than_rows_are_refused_with_the_ways_out() -> None:
    layout = Layout(rows=7, segment=4)
    with pytest.raises(DataError, match=r"rows\.rows to 6 or less.*--max-document-tokens"):
        next_reading(lengths_of(Positions(CORPUS), "train"), layout, initial_state(layout))
