"""What `show` says of lengths is what a ruler says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jobs.show import FIRST_CHARS, FIRST_LINES, beginning, histogram


@given(lengths=st.lists(st.integers(1, 1 << 40) | st.integers(1, 70)))
def test_every_document_is_counted_once_where_its_length_lies(lengths: list[int]) -> None:
    rows = histogram(np.array(lengths, dtype=np.int64))
    for row in rows:
        inside = [length for length in lengths if row["from"] <= length < row["below"]]
        assert (row["documents"], row["tokens"]) == (len(inside), sum(inside))
    assert sum(row["documents"] for row in rows) == len(lengths)


@given(text=st.text(alphabet="ab\n", max_size=60) | st.integers(0, 5_000).map("ab ".__mul__))
def test_the_beginning_of_a_text_is_its_beginning_and_says_what_follows(text: str) -> None:
    shown, _, rest = beginning(text).partition("\n... ")
    left = int(rest.split(" more")[0].replace(",", "")) if rest else 0
    assert text.startswith(shown)
    assert len(shown) + left == len(text)
    assert len(shown) <= FIRST_CHARS
    assert shown.count("\n") <= FIRST_LINES
