"""Rows that a mixture's small source is said to serve never read more of its texts than it has."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.layout import Boundary, Layout, check_layout
from pipeline.lengths import Mixed
from pipeline.lockstep import rows_served
from pipeline.rows import Walk
from pipeline.server import RowServer
from tests.streams import Positions


def most_at_once(documents: Positions, layout: Layout, steps: int) -> list[int]:
    """Of each source, the most rows that read it at one position in so many steps."""
    server = RowServer(documents, layout)
    walk = Walk(server.lengths, layout, server.initial_state())
    dealt = np.concatenate([walk.next_reading().dealt for _ in range(steps)])
    taken, found = layout.taken(dealt["num_tokens"]), []
    for number in range(len(documents.weights)):
        ours = documents.source[dealt["doc_id"]] == number
        begin, end = dealt["began"][ours], dealt["began"][ours] + taken[ours]
        readers = [int(((begin <= at) & (at < end)).sum()) for at in np.unique(begin)]
        found.append(max(readers, default=0))
    return found


def sources_of(documents: Positions) -> Mixed:
    lengths = documents.by_length("train")
    assert isinstance(lengths, Mixed)
    return lengths


def mixture_of(*sources: tuple[int, list[int]]) -> Positions:
    """Weight and lengths of the documents of each."""
    lengths = [length for _, ones in sources for length in ones]
    return Positions(lengths, mixture=[(len(ones), weight) for weight, ones in sources])


@st.composite
def mixtures(draw: st.DrawFn) -> Positions:
    """A small source of little weight, beside one or two others."""
    length = st.integers(0, draw(st.sampled_from([3, 12, 30])))
    small = draw(st.lists(length, min_size=1, max_size=6))
    others = draw(
        st.lists(
            st.tuples(st.integers(1, 20), st.lists(length, min_size=60, max_size=90)),
            min_size=1,
            max_size=2,
        )
    )
    return mixture_of((1, small), *others)


@given(
    documents=mixtures(),
    segment=st.integers(1, 9),
    seed=st.integers(0, 99),
    boundary=st.sampled_from(get_args(Boundary)),
)
def test_a_source_has_a_document_for_each_row_that_reads_it(
    documents: Positions, segment: int, seed: int, boundary: Boundary
) -> None:
    layout = Layout(segment=segment, seed=seed, boundary=boundary)
    mixture = sources_of(documents)
    count = mixture.sources[0].count
    layout = replace(layout, rows=min(rows_served(mixture, 0, layout.taken), 40))
    assert layout.rows >= count
    check_layout(layout, documents=mixture, world_size=1)
    assert most_at_once(documents, layout, steps=200 // segment)[0] <= count


def test_rows_in_lockstep_are_refused_with_two_ways_out() -> None:
    documents = mixture_of((1, [9] * 2), (1, [999] * 2))
    layout = Layout(rows=4, segment=1024)
    assert any(most > 2 for most in most_at_once(documents, layout, steps=1))
    lengths = sources_of(documents)
    with pytest.raises(DataError, match="Store 0 of the mixture holds 2 training") as caught:
        check_layout(layout, documents=lengths, world_size=1)
    assert "Set rows.rows to 2 or less" in str(caught.value)
    assert "`longrow build --max-document-tokens N`" in str(caught.value)
    check_layout(Layout(rows=2, segment=1024), documents=lengths, world_size=1)


def test_a_small_source_of_little_weight_is_read_by_many_rows() -> None:
    documents = mixture_of((1, [300] * 9), (99, [50, 500, 1000] * 40))
    check_layout(Layout(rows=64), documents=sources_of(documents), world_size=1)
