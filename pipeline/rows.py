"""What every row reads: documents dealt whole, each to the row that runs out first.

A lazy walk over document lengths: no tokens, no files, no clock. docs/formats.md states the rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import numpy as np
import numpy.typing as npt

from pipeline.layout import Layout, check_sources
from pipeline.lengths import Mixed, Source, mixed
from pipeline.order import documents_from, seed_of_source
from pipeline.rows_state import RowsState, SourceState, initial_state, row_lengths

Table = npt.NDArray[np.void]
# A stretch of one document that a row reads within a segment; a pad has doc_id -1.
PIECE = np.dtype(
    [
        ("row", "<i8"),
        ("column", "<i8"),  # of its first input, in the segment
        ("count", "<i8"),  # inputs
        ("doc_id", "<i8"),
        ("epoch", "<i8"),
        ("offset", "<i8"),  # of its first input, in the document
        ("num_tokens", "<i8"),  # text tokens of the whole document
    ]
)
# A document given to a row; `began` is the row position of its first input.
DEALT = np.dtype([(name, "<i8") for name in ("row", "doc_id", "epoch", "began", "num_tokens")])
_STRIDE = 64  # steps dealt at once when none of them is looked at


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """What rows [lo, hi) read at a step, and what had to be dealt for it, to all rows.

    Attributes:
        step: The step.
        rows: [lo, hi).
        pieces: (P,) of PIECE, by row and column; they cover each segment without a gap.
        dealt: (D,) of DEALT, in dealing order.
        sources: How far each source is dealt after it.
    """

    step: int
    rows: tuple[int, int]
    pieces: Table
    dealt: Table
    sources: tuple[SourceState, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.pieces.nbytes + self.dealt.nbytes


def next_reading(
    lengths: Source | Mixed, layout: Layout, state: RowsState
) -> tuple[Reading, RowsState]:
    """What all rows read at `state`, and the state after it.

    Raises:
        DataError, RowsError: As `Walk`.
    """
    walk = Walk(lengths, layout, state)
    return walk.next_reading(), walk.state()


def advance(lengths: Source | Mixed, layout: Layout, state: RowsState, steps: int) -> RowsState:
    """The state `steps` steps further: as after so many readings, without making them.

    Raises:
        DataError, RowsError: As `Walk`.
    """
    walk = Walk(lengths, layout, state)
    walk.skip(steps)
    return walk.state()


def state_after(state: RowsState, reading: Reading) -> RowsState:
    """The state after a reading, from the state before it."""
    columns = {name: getattr(state, name).copy() for name in ("doc_id", "epoch", "began")}
    for name, column in columns.items():
        column[reading.dealt["row"]] = reading.dealt[name]  # of a row's documents the last stays
    restart = state.restart
    if restart and restart.pending:  # they went first
        restart = replace(restart, pending=restart.pending[len(reading.dealt) :])
    return RowsState(step=reading.step + 1, sources=reading.sources, restart=restart, **columns)


def once(
    lengths: Source, *, rows: int, segment: int, mine: tuple[int, int] | None = None
) -> Iterator[Reading]:
    """Every document exactly once, in store order, dealt by the same rule.

    Rows that have run out read pads until the last one has: all have equally many steps.
    """
    layout = Layout(rows=rows, segment=segment, shuffle="none")
    walk = Walk(lengths, layout, initial_state(layout), mine=mine, passes=1)
    while walk.unread():
        yield walk.next_reading()


class Walk:
    """The rows in motion, from a state on. A document costs O(log B), the walk O(B) memory."""

    def __init__(
        self,
        lengths: Source | Mixed,
        layout: Layout,
        state: RowsState,
        *,
        mine: tuple[int, int] | None = None,
        passes: int | None = None,
    ) -> None:
        """Start at `state`.

        Args:
            lengths: The documents.
            layout: The rows.
            state: Where to start.
            mine: Rows [lo, hi) to make pieces for; all without it.
            passes: Epochs to deal, after which rows run out; endless without it.

        Raises:
            DataError: The documents are not those the state was made with, or fewer than rows.
            RowsError: The layout is not the one the state was made with.
        """
        self._mixture = mixed(lengths)
        if passes is None:
            check_sources(layout.rows, self._mixture)
        self._layout, self._passes = layout, passes
        self._segment, self._rows = layout.segment, mine or (0, layout.rows)
        self._step, self._first_step = state.step, state.first_step
        self._sources, self._restart = list(state.sources), state.restart
        self._num_tokens = row_lengths(state, self._mixture, layout)  # of each row's last document
        self._doc_id, self._epoch = state.doc_id.copy(), state.epoch.copy()
        self._began = state.began.copy()
        self._end = np.where(self._num_tokens < 0, 0, self._began + layout.taken(self._num_tokens))
        self._heap = list(zip(self._end.tolist(), range(layout.rows), strict=True))
        heapify(self._heap)
        self._documents = [
            documents_from(
                source,
                epoch=dealt.epoch,
                index=dealt.next_index,
                seed=seed_of_source(layout.seed, number),
                shuffle=layout.shuffle,
                block=layout.block,
            )
            for number, (source, dealt) in enumerate(
                zip(self._mixture.sources, self._sources, strict=True)
            )
        ]

    def state(self) -> RowsState:
        """The state before the next reading."""
        return RowsState(
            step=self._step,
            sources=tuple(self._sources),
            doc_id=self._doc_id.copy(),
            epoch=self._epoch.copy(),
            began=self._began.copy(),
            restart=self._restart,
        )

    def unread(self) -> bool:
        """Whether a row has inputs left, dealt or still to be dealt."""
        return self._left() > 0 or bool(self._end.max() > self._position(self._step))

    def skip(self, steps: int) -> None:
        """Go on by `steps` steps."""
        goal = self._step + steps
        while self._step < goal:
            self._step = min(self._step + _STRIDE, goal)
            self._deal(self._position(self._step))

    def next_reading(self) -> Reading:
        """What the rows read at this step; goes on by one."""
        carried = self._carried()
        dealt = self._deal(self._position(self._step + 1))
        pieces = self._pieces(np.concatenate([carried, dealt]))
        self._step += 1
        return Reading(
            step=self._step - 1,
            rows=self._rows,
            pieces=pieces,
            dealt=dealt,
            sources=tuple(self._sources),
        )

    def _position(self, step: int) -> int:
        """Of each row, at the beginning of a step."""
        return (step - self._first_step) * self._segment

    def _left(self) -> float:
        """Documents still to be dealt."""
        if self._passes is None:
            return float("inf")
        (source,), (dealt,) = self._mixture.sources, self._sources
        return (self._passes - dealt.epoch) * source.count - dealt.next_index

    def _deal(self, until: int) -> Table:
        """Deal until every row has `until` tokens: no row is given more than it needs."""
        heap, left, taken = self._heap, self._left(), self._layout.taken
        again, counts = self._again(until), [0] * len(self._sources)
        tokens = [source.tokens_dealt for source in self._sources]
        dealt: list[tuple[int, int, int, int, int]] = []
        while heap[0][0] < until and len(dealt) < left:
            end, row = heap[0]
            if again:
                doc_id, num_tokens, epoch = again.pop()
            else:
                number = self._mixture.neediest(tokens)
                doc_id, num_tokens, epoch = next(self._documents[number])
                counts[number] += 1
                tokens[number] += taken(num_tokens)
            heapreplace(heap, (end + taken(num_tokens), row))
            dealt.append((row, doc_id, epoch, end, num_tokens))
        self._sources = [
            _after(source.count, state, documents=counts[number], tokens_dealt=tokens[number])
            for number, (source, state) in enumerate(
                zip(self._mixture.sources, self._sources, strict=True)
            )
        ]
        if self._restart and self._restart.pending:
            self._restart = replace(self._restart, pending=self._restart.pending[len(dealt) :])
        table = np.array(dealt, dtype=DEALT)
        rows = table["row"]  # of a row's documents the last stays
        self._doc_id[rows], self._epoch[rows] = table["doc_id"], table["epoch"]
        self._began[rows], self._num_tokens[rows] = table["began"], table["num_tokens"]
        self._end[rows] = table["began"] + taken(table["num_tokens"])
        return table

    def _again(self, until: int) -> list[tuple[int, int, int]]:
        """The documents to be dealt once more, last first, as a source yields them."""
        if not self._restart or not self._restart.pending or self._heap[0][0] >= until:
            return []
        doc_id, epoch = np.array(self._restart.pending, dtype=np.int64).T
        num_tokens = self._mixture.num_tokens_of(doc_id)
        come = zip(doc_id.tolist(), num_tokens.tolist(), epoch.tolist(), strict=True)
        return list(come)[::-1]

    def _carried(self) -> Table:
        """The documents that my rows are in the middle of."""
        lo, hi = self._rows
        rows = lo + np.flatnonzero(self._end[lo:hi] > self._position(self._step))
        table = np.empty(len(rows), dtype=DEALT)
        table["row"] = rows
        for name, column in (
            ("doc_id", self._doc_id),
            ("epoch", self._epoch),
            ("began", self._began),
            ("num_tokens", self._num_tokens),
        ):
            table[name] = column[rows]
        return table

    def _pieces(self, documents: Table) -> Table:
        """What my rows read of these documents at this step, and pads where they have run out."""
        lo, hi = self._rows
        start, stop = self._position(self._step), self._position(self._step + 1)
        mine = documents[(documents["row"] >= lo) & (documents["row"] < hi)]
        first, last = np.maximum(mine["began"], start), np.minimum(_end(mine), stop)
        inputs_end = self._began + self._num_tokens + 1  # 0 before a row's first document
        out = lo + np.flatnonzero(inputs_end[lo:hi] < stop)
        pieces = np.zeros(len(mine) + len(out), dtype=PIECE)
        read, pads = pieces[: len(mine)], pieces[len(mine) :]
        for name in ("row", "doc_id", "epoch", "num_tokens"):
            read[name] = mine[name]
        read["column"], read["count"], read["offset"] = (
            first - start,
            last - first,
            first - mine["began"],
        )
        pads["row"], pads["doc_id"] = out, -1
        pads["column"] = np.maximum(inputs_end[out], start) - start
        pads["count"] = self._segment - pads["column"]
        return pieces[np.argsort(pieces["row"] * self._segment + pieces["column"])]


def _after(count: int, source: SourceState, *, documents: int, tokens_dealt: int) -> SourceState:
    """The state of a source of `count` documents when so many more of them are dealt."""
    passed, index = divmod(source.next_index + documents, max(count, 1))
    return SourceState(epoch=source.epoch + passed, next_index=index, tokens_dealt=tokens_dealt)


def _end(documents: Table) -> npt.NDArray[np.int64]:
    """The row position after a document's last input."""
    return documents["began"] + documents["num_tokens"] + 1
