"""Where a row goes on reading a document, and where it begins another: what a skip writes down."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from trainer.ledger import documents_of


def test_every_stretch_of_a_document_is_named_once_with_where_it_begins() -> None:
    batch: Any = SimpleNamespace(
        doc_id=np.array([[7, 7, 9, 9], [3, 3, -1, -1], [-1, -1, -1, -1]]),
        offset=np.array([[5, 6, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]),
    )
    assert documents_of(batch, first_row=4) == [(4, 7, 5), (4, 9, 0), (5, 3, 0)]


def test_a_document_that_a_row_reads_twice_in_a_segment_begins_twice() -> None:
    batch: Any = SimpleNamespace(doc_id=np.array([[2, 2, 2, 2]]), offset=np.array([[1, 2, 0, 1]]))
    assert documents_of(batch, first_row=0) == [(0, 2, 1), (0, 2, 0)]
