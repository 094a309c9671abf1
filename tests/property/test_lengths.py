"""A split read from a mapped index is the split, and costs no memory by the document."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.layout import Layout
from pipeline.lengths import Int64s, SplitLengths
from pipeline.rows import advance, initial_state


@given(
    count=st.integers(1, 3000),
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    base=st.integers(0, 2**40),
)
def test_a_mapped_split_is_the_split(count: int, seed: int, share: float, base: int) -> None:
    random = np.random.default_rng(seed)
    splits = (random.random(count) < share).astype(np.uint8)
    num_tokens = random.integers(0, 100, count)
    for split in (0, 1):
        rows = np.flatnonzero(splits == split)
        found = SplitLengths(num_tokens, splits, split, base=base)
        assert found.count == len(rows)
        assert found.longest == max(num_tokens[rows], default=0)
        places = random.permutation(len(rows))
        doc_id, lengths = found.at(places)
        np.testing.assert_array_equal(doc_id, rows[places] + base)
        np.testing.assert_array_equal(lengths, num_tokens[rows[places]])
        asked = np.arange(base - 3, base + count + 3)
        wanted = np.full(count + 6, -1)
        wanted[rows + 3] = num_tokens[rows]
        np.testing.assert_array_equal(found.num_tokens_of(asked), wanted)


class Endless:
    """As many documents as one likes, of 60 .. 160 tokens, that lie nowhere."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.longest = 160

    def at(self, place: Int64s) -> tuple[Int64s, Int64s]:
        return place, 60 + place * 37 % 101

    def num_tokens_of(self, doc_id: Int64s) -> Int64s:
        return np.where(doc_id < 0, -1, 60 + doc_id * 37 % 101)


@pytest.mark.parametrize("shuffle", ["global", "block", "none"])
def test_the_walk_takes_the_same_memory_whatever_the_corpus_holds(shuffle: str) -> None:
    layout = Layout(rows=64, segment=32, shuffle=shuffle)  # pyright: ignore[reportArgumentType]

    def peak(count: int) -> int:
        tracemalloc.start()
        advance(Endless(count), layout, initial_state(layout), 1000)
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10**4)  # whatever is made once
    small, large = peak(10**5), peak(10**12)
    assert large < 1.25 * small  # larger numbers are larger objects


def test_a_mapped_split_is_not_copied() -> None:
    count = 1 << 22
    splits = np.zeros(count, dtype=np.uint8)
    splits[::1000] = 1
    num_tokens = np.full(count, 300)
    tracemalloc.start()
    try:
        source = SplitLengths(num_tokens, splits, 0)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert source.count == count - len(splits[::1000])
    assert kept < count / 512 * 8 + 20_000
    assert peak < 4_000_000  # a copy of the lengths would be 33,554,432
