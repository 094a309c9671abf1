"""A block is bounded, a batch has the type of the vocabulary, a digest sees every field."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from pipeline.batch import digest
from pipeline.errors import DataError
from pipeline.layout import Layout
from pipeline.rows import advance
from pipeline.server import MAX_BLOCK_BYTES, RowServer
from tests.streams import Positions

CORPUS = [(37 * i) % 400 + 1 for i in range(60)]


@pytest.mark.parametrize(
    ("rows", "count", "steps"),
    [(1, 3, 3), (16, 32, 6), (50, 32, 2), (2, 1, 1)],
)
def test_a_block_brings_what_is_asked_for_up_to_its_bound(
    rows: int, count: int, steps: int
) -> None:
    server = RowServer(Positions(CORPUS), Layout(rows=rows, segment=16_384))  # 64 kB a row
    block = server.read(server.initial_state(), count, (0, rows))
    assert block.steps == steps
    start = server.initial_state()
    assert block.after == advance(server.lengths, server.layout, start, steps)
    assert len(pickle.dumps(block)) < MAX_BLOCK_BYTES * 1.01


def test_a_block_of_many_short_documents_is_bounded_too() -> None:
    server = RowServer(Positions([0] * 60), Layout(rows=60, segment=1_000))
    block = server.read(server.initial_state(), 1_000, (0, 60))  # a document for each input
    assert 1 <= block.steps < 10
    assert len(pickle.dumps(block)) < MAX_BLOCK_BYTES * 1.01


def test_one_step_is_served_however_large() -> None:
    server = RowServer(Positions(CORPUS), Layout(rows=32, segment=80_000))
    block = server.read(server.initial_state(), 16, (0, 32))
    assert (block.steps, block.tokens.nbytes > MAX_BLOCK_BYTES) == (1, True)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(65_535, np.uint16), (65_536, np.uint16), (65_537, np.uint32)]
)
def test_tokens_have_the_smallest_type_that_holds_the_vocabulary(
    vocab_size: int, dtype: type[np.unsignedinteger]
) -> None:
    documents = Positions([20, 12], vocab_size=vocab_size)
    documents.start += vocab_size - (int(documents.start[-1]) + 12)  # the last id is in use
    server = RowServer(documents, Layout(rows=1, segment=40))
    batch = server.read(server.initial_state(), 1, (0, 1)).batch(0)
    assert batch.tokens.dtype == dtype
    assert batch.tokens.max() == batch.targets.max() == vocab_size - 1


def test_documents_of_another_type_than_the_vocabulary_has_are_refused() -> None:
    documents = Positions([5, 3], vocab_size=65_536)
    documents.dtype = np.uint32
    server = RowServer(documents, Layout(rows=2, segment=4))
    with pytest.raises(DataError, match=r"of uint32 .* of uint16"):
        server.digest_of_next(server.initial_state())


def test_a_digest_sees_every_field() -> None:
    server = RowServer(Positions(CORPUS), Layout(rows=4, segment=16))
    batch = server.read(server.initial_state(), 1, (0, 4)).batch(0)
    changed = [
        replace(batch, step=1),
        replace(batch, rows=(4, 8)),
        *(
            replace(batch, **{name: getattr(batch, name) ^ True})
            for name in ("tokens", "targets", "doc_id", "offset", "reset", "epoch")
        ),
    ]
    assert len({digest(one) for one in [batch, *changed]}) == 9
    assert digest(batch) == server.digest_of_next(server.initial_state())


def test_a_batch_may_be_written_to_and_keeps_no_block_alive() -> None:
    server = RowServer(Positions(CORPUS), Layout(rows=4, segment=16))
    block = server.read(server.initial_state(), 8, (0, 4))
    batch = block.batch(3)
    for name in ("tokens", "targets", "doc_id", "offset", "reset", "epoch"):
        values = getattr(batch, name)
        assert values.flags.writeable, name
        assert not np.shares_memory(values, block.tokens), name
        assert not np.shares_memory(values, block.pieces), name
