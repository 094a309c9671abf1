"""Other rows in the middle of a run: what was in progress goes first, and nothing is lost."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.layout import Layout, RowsError
from pipeline.reshard import reshard
from pipeline.rows import advance, next_reading
from pipeline.rows_state import RowsState
from pipeline.server import RowServer
from tests.streams import (
    Positions,
    assert_equal_batches,
    batch_by_definition,
    runs,
    streams_by_definition,
    through_json,
    walk,
)

Run = tuple[Positions, Layout]


@st.composite
def other_rows(draw: st.DrawFn) -> tuple[Positions, Layout, Layout]:
    """A corpus, rows, and other rows that it can fill."""
    documents, layout = draw(runs())
    rows = draw(st.integers(1, layout.rows))
    segment = draw(st.integers(1, 12))
    old, new = layout, replace(layout, rows=rows, segment=segment)
    return (documents, *((old, new) if draw(st.booleans()) else (new, old)))


def in_progress(documents: Positions, layout: Layout, state: RowsState) -> list[tuple[int, int]]:
    """doc_id and epoch of what the rows have begun and not read to its end, by row."""
    reached = (state.step - state.first_step) * layout.segment
    return [
        (doc_id, epoch)
        for doc_id, epoch, began in zip(
            state.doc_id.tolist(), state.epoch.tolist(), state.began.tolist(), strict=True
        )
        if doc_id >= 0 and began + documents.lengths[doc_id] + 1 > reached
    ]


@given(case=other_rows(), before=st.integers(0, 12), after=st.integers(1, 12))
def test_new_rows_read_what_was_in_progress_and_then_what_comes_next(
    case: tuple[Positions, Layout, Layout], before: int, after: int
) -> None:
    documents, old, new = case
    server, moved = RowServer(documents, old), RowServer(documents, new)
    state = advance(server.lengths, old, server.initial_state(), before)
    dealt = reshard(server.lengths, state, old=old, new=new)
    first = in_progress(documents, old, state)
    assert dealt.again == tuple(doc_id for doc_id, _ in first)
    streams = streams_by_definition(documents, new, after, first=first, dealt=state.sources)
    steps = walk(moved, through_json(dealt.state), after)
    for step, (batch, later) in enumerate(steps):
        assert_equal_batches(replace(batch, step=step), batch_by_definition(streams, new, step))
        assert batch.step == before + step
        assert through_json(later) == later


@given(case=other_rows(), steps=st.lists(st.integers(0, 6), min_size=2, max_size=4))
def test_a_document_is_read_to_its_end_once_an_epoch_however_often_the_rows_change(
    case: tuple[Positions, Layout, Layout], steps: list[int]
) -> None:
    documents, layout, other = case
    state = RowServer(documents, layout).initial_state()
    whole: Counter[tuple[int, int]] = Counter()
    for count in steps:
        server = RowServer(documents, layout)
        for _ in range(count):
            reading, state = next_reading(server.lengths, layout, state)
            for piece in reading.pieces:
                end = piece["offset"] + piece["count"]
                if piece["doc_id"] >= 0 and end == piece["num_tokens"] + 1:
                    whole[int(piece["doc_id"]), int(piece["epoch"])] += 1
        state = through_json(reshard(server.lengths, state, old=layout, new=other).state)
        layout, other = other, layout
    assert set(whole.values()) <= {1}
    pending = state.restart.pending if state.restart else ()
    for number, doc_ids in enumerate(documents.ids_by_source("train")):
        source = state.sources[number]
        dealt = source.epoch * len(doc_ids) + source.next_index
        ours = [one for one in [*whole, *pending] if one[0] in doc_ids]
        assert len(ours) == len(set(ours)) == dealt  # each was read whole, or is still to be


@given(case=other_rows(), before=st.integers(0, 9), steps=st.integers(0, 90))
def test_going_ahead_in_new_rows_is_walking(
    case: tuple[Positions, Layout, Layout], before: int, steps: int
) -> None:
    documents, old, new = case
    lengths = RowServer(documents, old).lengths
    state = advance(lengths, old, RowServer(documents, old).initial_state(), before)
    state = reshard(lengths, state, old=old, new=new).state
    ahead = advance(lengths, new, state, steps)
    for _ in range(steps):
        _, state = next_reading(lengths, new, through_json(state))
    assert ahead == state


def test_tokens_and_epochs_are_counted_on() -> None:
    documents = Positions([5, 9, 3, 7, 11, 20])
    old, new = Layout(rows=3, segment=4), Layout(rows=2, segment=5)
    lengths = documents.by_length("train")
    state = advance(lengths, old, RowServer(documents, old).initial_state(), 9)
    moved = reshard(lengths, state, old=old, new=new)
    assert moved.state.sources == state.sources
    assert moved.state.step == 9
    words = moved.in_words(old, new)
    assert f"{len(moved.again)} documents in progress are read again" in words
    assert f"{moved.tokens} tokens of them for the second time" in words


def test_new_rows_that_the_documents_do_not_fill_are_refused() -> None:
    documents = Positions([5, 9, 3])
    old, new = Layout(rows=3, segment=4), Layout(rows=4, segment=4)
    lengths = documents.by_length("train")
    with pytest.raises(DataError, match=r"rows\.rows = 4"):
        reshard(lengths, RowServer(documents, old).initial_state(), old=old, new=new)


def test_a_changed_layout_without_a_reshard_names_it() -> None:
    documents = Positions([5, 9, 3])
    state = RowServer(documents, Layout(rows=3, segment=4)).initial_state()
    with pytest.raises(RowsError, match="resume with --reshard"):
        next_reading(documents.by_length("train"), Layout(rows=2, segment=4), state)
