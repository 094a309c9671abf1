"""What `show` says of lengths is what a ruler says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jobs.show import histogram


@given(lengths=st.lists(st.integers(1, 1 << 40) | st.integers(1, 70)))
def test_every_document_is_counted_once_where_its_length_lies(lengths: list[int]) -> None:
    rows = histogram(np.array(lengths, dtype=np.int64))
    for row in rows:
        inside = [length for length in lengths if row["from"] <= length < row["below"]]
        assert (row["documents"], row["tokens"]) == (len(inside), sum(inside))
    assert sum(row["documents"] for row in rows) == len(lengths)
