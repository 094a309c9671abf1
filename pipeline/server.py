"""Rows with their tokens: from a store and a state, the next steps. It keeps nothing in between."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.batch import Batch, Tokens, batch_of, digest
from pipeline.block import Block, block_of
from pipeline.errors import DataError
from pipeline.layout import Layout
from pipeline.lengths import Int64s, Lengths, Mixed, Source, mixed
from pipeline.rows import Reading, Walk, once
from pipeline.rows_state import RowsState, initial_state

MAX_BLOCK_BYTES = 8_000_000
PATIENCE_S = 1.0  # after which a read gives what it has: a slow store must not hold up a step
Split = Literal["train", "validation"]


class Documents(Protocol):
    """What a server wants of a store."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def eod(self) -> int: ...
    def num_tokens(self, split: Split, /) -> Int64s: ...
    def doc_ids(self, split: Split, /) -> Int64s: ...
    def read(self, doc_id: int, /) -> npt.NDArray[Any]: ...


class TrainDocuments(Documents, Protocol):
    """What rows are read from."""

    def by_length(self, split: Split, /) -> Source | Mixed: ...


class NotBuiltYetError(Exception):
    """The documents of a step are still being built (growing_server.py): ask again."""


class Server(Protocol):
    """What a client and a run want of a server."""

    @property
    def layout(self) -> Layout: ...
    def initial_state(self) -> RowsState: ...
    def ready(self, state: RowsState, /) -> bool: ...
    def read(self, state: RowsState, count: int, rows: tuple[int, int], /) -> Block: ...
    def digest_of_next(self, state: RowsState, /) -> str: ...


class RowServer:
    """Reads rows of a store from any state: asked twice, it answers twice the same."""

    def __init__(
        self,
        documents: TrainDocuments,
        layout: Layout,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the lengths of the documents in; reads none."""
        self._documents = documents
        self._layout = layout
        self._clock = clock
        self._lengths = documents.by_length("train")

    @property
    def layout(self) -> Layout:
        """The rows it serves."""
        return self._layout

    @property
    def lengths(self) -> Source | Mixed:
        """The training documents."""
        return self._lengths

    def initial_state(self) -> RowsState:
        """Before the first step."""
        return initial_state(self._layout, len(mixed(self._lengths).sources))

    def ready(self, _state: RowsState, /) -> bool:
        """Whether the step after a state is there: of a whole store every step is."""
        return True

    def read(self, state: RowsState, count: int, rows: tuple[int, int]) -> Block:
        """The next steps of rows [lo, hi).

        Args:
            state: Of all rows, where to start.
            count: Steps wanted, at least 1.
            rows: [lo, hi).

        Returns:
            1 .. `count` steps: no more than fit into MAX_BLOCK_BYTES, if at least one does, and
            none more once PATIENCE_S have gone by.

        Raises:
            DataError: The documents are not those of the state, or a document is damaged.
            RowsError: The layout is not that of the state.
        """
        walk = Walk(self._lengths, self._layout, state, mine=rows)
        tokens, last = _buffers(self._documents, count, rows, self._layout.segment)
        readings: list[Reading] = []
        room = MAX_BLOCK_BYTES - state.doc_id.nbytes * 3
        until = self._clock() + PATIENCE_S
        for step_tokens, step_last in zip(tokens, last, strict=True):
            after = walk.state()
            reading = walk.next_reading()
            room -= sum(part.nbytes for part in (step_tokens, step_last)) + reading.nbytes
            if readings and (room < 0 or self._clock() > until):
                break
            _fill(self._documents, reading, step_tokens, step_last)
            readings.append(reading)
        else:
            after = walk.state()
        steps = len(readings)
        return block_of(
            readings, tokens[:steps], last[:steps], eod=self._documents.eod, after=after
        )

    def digest_of_next(self, state: RowsState) -> str:
        """The sha256 of the batch, of all rows, that follows `state`.

        Raises:
            DataError, RowsError: As `read`.
        """
        return digest(self.read(state, 1, (0, self._layout.rows)).batch(0))


class ReadAhead:
    """A server that works out the block after the one it gave while that one travels.

    What it answers never depends on what it has ready. Calls may come from several threads; one
    thread does all the reading, for a store need not bear more.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        self._lock = Lock()
        self._ready: tuple[tuple[RowsState, int, tuple[int, int]], Future[Block]] | None = None

    def read(self, state: RowsState, count: int, rows: tuple[int, int]) -> Block:
        """As `RowServer.read`."""
        asked = (state, count, rows)
        with self._lock:
            ready, self._ready = self._ready, None
        use = ready and ready[0] == asked and not _was_not_built(ready[1])
        future = ready[1] if ready and use else self._submit(asked)
        block = future.result()
        following = (block.after, count, rows)
        with self._lock:
            self._ready = (following, self._submit(following))
        return block

    def close(self) -> None:
        """End its thread."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, asked: tuple[RowsState, int, tuple[int, int]]) -> Future[Block]:
        return self._pool.submit(self._server.read, *asked)


def _was_not_built(read: Future[Block]) -> bool:
    """Whether a read found its documents missing: they may be there by now."""
    return read.done() and isinstance(read.exception(), NotBuiltYetError)


def validation_batches(
    documents: Documents,
    *,
    rows: int,
    segment: int,
    mine: tuple[int, int] | None = None,
    split: Split = "validation",
) -> Iterator[Batch]:
    """Every held-out document exactly once, in store order, in rows that end in pads.

    Args:
        documents: The store.
        rows: Rows of all ranks together.
        segment: L.
        mine: The rows [lo, hi) wanted; all without it. Every share has equally many batches.
        split: The documents.

    Raises:
        DataError: A document is damaged.
    """
    lo, hi = mine or (0, rows)
    for reading in once(lengths_of(documents, split), rows=rows, segment=segment, mine=(lo, hi)):
        tokens, last = _buffers(documents, 1, (lo, hi), segment)
        _fill(documents, reading, tokens[0], last[0])
        yield batch_of(
            reading.pieces, tokens[0], last[0], step=reading.step, rows=(lo, hi), eod=documents.eod
        )


def lengths_of(documents: Documents, split: Split) -> Lengths:
    """The documents of a split, by length alone, copied to memory: for what is held out."""
    return Lengths(doc_id=documents.doc_ids(split), num_tokens=documents.num_tokens(split))


def _buffers(
    documents: Documents, count: int, rows: tuple[int, int], segment: int
) -> tuple[Tokens, Tokens]:
    """Room for the inputs and last targets of up to `count` steps, as a block may hold."""
    dtype = np.uint16 if documents.vocab_size <= 1 << 16 else np.uint32
    num_rows = rows[1] - rows[0]
    fitting = MAX_BLOCK_BYTES // (num_rows * segment * dtype().itemsize)
    steps = max(1, min(count, fitting))
    return np.empty((steps, num_rows, segment), dtype), np.zeros((steps, num_rows), dtype)


def _fill(documents: Documents, reading: Reading, tokens: Tokens, last: Tokens) -> None:
    """Write the inputs (R, L) of a reading and the targets of its last column (R,)."""
    lo, segment, bos = reading.rows[0], tokens.shape[1], documents.bos
    for row, column, count, doc_id, _, offset, num_tokens in reading.pieces.tolist():
        line, end = tokens[row - lo], column + count
        if doc_id < 0:
            line[column:end] = bos
            continue
        text = documents.read(doc_id)  # its tokens, then EOD: the input at an offset is one before
        if len(text) != num_tokens + 1 or text.dtype != tokens.dtype:
            raise _not_as_listed(doc_id, text, num_tokens, tokens)
        if offset:
            line[column:end] = text[offset - 1 : offset - 1 + count]
        else:
            line[column] = bos
            line[column + 1 : end] = text[: count - 1]
        if end == segment:
            last[row - lo] = text[offset + count - 1]


def _not_as_listed(
    doc_id: int, text: npt.NDArray[Any], num_tokens: int, tokens: Tokens
) -> DataError:
    return DataError(
        f"Document {doc_id} of the store has {len(text) - 1:,} tokens of {text.dtype} and an end, "
        f"the store's index says {num_tokens:,} of {tokens.dtype}. The store was changed or is "
        "damaged: build it again."
    )
