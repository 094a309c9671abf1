"""What tests of the rows share: documents whose tokens are their own positions, and the definition.

No token id stands at two places, so a lost, repeated or foreign token shows at once.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import count

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pipeline.batch import Batch
from pipeline.layout import Layout
from pipeline.lengths import Int64s, Lengths, Mixed
from pipeline.order import document_at, seed_of_source
from pipeline.rows_state import RowsState, SourceState
from pipeline.server import RowServer, Split


class Positions:
    """Documents in memory. Ids 0 and 1 are BOS and EOD; document k's tokens go on from k - 1's."""

    bos = 0
    eod = 1

    def __init__(
        self,
        num_tokens: Sequence[int],
        held_out: Sequence[int] = (),
        vocab_size: int = 70_000,
        mixture: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`mixture` cuts them into sources: documents and weight of each."""
        self.lengths = np.array(num_tokens, dtype=np.int64)
        self.start = np.cumsum(self.lengths) - self.lengths + 2
        self.vocab_size = max(int(self.lengths.sum()) + 2, vocab_size)
        self.dtype = np.uint16 if self.vocab_size <= 65_536 else np.uint32
        self.weights = [weight for _, weight in mixture] or [1]
        counts = [count for count, _ in mixture] or [len(self.lengths)]
        self.source = np.repeat(np.arange(len(counts)), counts)  # of each document
        self._is_held_out = np.isin(np.arange(len(self.lengths)), held_out)

    def doc_ids(self, split: Split) -> Int64s:
        return np.flatnonzero(self._is_held_out == (split == "validation"))

    def num_tokens(self, split: Split) -> Int64s:
        return self.lengths[self.doc_ids(split)]

    def by_length(self, split: Split) -> Lengths | Mixed:
        sources = [
            Lengths(doc_id=ids, num_tokens=self.lengths[ids]) for ids in self.ids_by_source(split)
        ]
        if len(sources) == 1:
            return sources[0]
        return Mixed(sources=tuple(sources), weights=tuple(self.weights))

    def ids_by_source(self, split: Split) -> list[Int64s]:
        ids = self.doc_ids(split)
        return [ids[self.source[ids] == number] for number in range(len(self.weights))]

    def read(self, doc_id: int) -> npt.NDArray[np.uint16 | np.uint32]:
        start, end = self.start[doc_id], self.start[doc_id] + self.lengths[doc_id]
        return np.append(np.arange(start, end), self.eod).astype(self.dtype)


@dataclass(frozen=True)
class Input:
    """One position of a row as DESIGN defines it."""

    token: int
    target: int
    doc_id: int
    offset: int
    epoch: int


def inputs_of(documents: Positions, doc_id: int, epoch: int) -> list[Input]:
    """BOS and the tokens, each with the token that follows it, the last with EOD."""
    text = [documents.start[doc_id] + i for i in range(documents.lengths[doc_id])]
    return [
        Input(token=int(token), target=int(target), doc_id=doc_id, offset=offset, epoch=epoch)
        for offset, (token, target) in enumerate(
            zip([documents.bos, *text], [*text, documents.eod], strict=True)
        )
    ]


PAD = Input(token=0, target=-100, doc_id=-1, offset=0, epoch=0)


def laid_out(inputs: list[Input], layout: Layout) -> list[Input]:
    """A document as it takes its place in a row."""
    beyond = -len(inputs) % layout.segment if layout.boundary == "pad" else 0
    return inputs + [PAD] * beyond


def documents_of_source(
    documents: Positions, layout: Layout, number: int
) -> Iterator[tuple[int, int]]:
    """The documents of a source and their epochs, in the order in which they are dealt."""
    doc_ids = documents.ids_by_source("train")[number]
    for epoch in count():
        for index in range(len(doc_ids)):
            place = document_at(
                index,
                count=len(doc_ids),
                epoch=epoch,
                seed=seed_of_source(layout.seed, number),
                shuffle=layout.shuffle,
                block=layout.block,
            )
            yield int(doc_ids[place]), epoch


def streams_by_definition(
    documents: Positions,
    layout: Layout,
    steps: int,
    *,
    first: Sequence[tuple[int, int]] = (),
    dealt: Sequence[SourceState] = (),
) -> list[list[Input]]:
    """The rows' streams: one document after the other to the row with the fewest tokens so far.

    It comes from the source that lacks most of its share of the tokens dealt.

    Args:
        documents: The documents.
        layout: The rows.
        steps: Steps that the streams must suffice for.
        first: doc_id and epoch of documents that go before all others, and are not counted.
        dealt: What of each source was dealt before.
    """
    streams: list[list[Input]] = [[] for _ in range(layout.rows)]
    shares = [Fraction(weight, sum(documents.weights)) for weight in documents.weights]
    come = [documents_of_source(documents, layout, number) for number in range(len(shares))]
    tokens = [source.tokens_dealt for source in dealt] or [0] * len(shares)
    for number, source in enumerate(dealt):
        passed = source.epoch * len(documents.ids_by_source("train")[number]) + source.next_index
        for _ in range(passed):
            next(come[number])
    again = list(first)
    while True:
        lengths = [len(stream) for stream in streams]
        if min(lengths) >= steps * layout.segment:
            return streams
        lacks = [share * sum(tokens) - has for share, has in zip(shares, tokens, strict=True)]
        number = lacks.index(max(lacks))
        doc_id, epoch = again[0] if again else next(come[number])
        inputs = laid_out(inputs_of(documents, doc_id, epoch), layout)
        if again:
            again.pop(0)
        else:
            tokens[number] += len(inputs)
        streams[lengths.index(min(lengths))] += inputs


def batch_by_definition(streams: list[list[Input]], layout: Layout, step: int) -> Batch:
    """What all rows read at a step, cut from their streams."""
    L = layout.segment
    cut = [stream[step * L : (step + 1) * L] for stream in streams]

    def field(name: str) -> list[list[int]]:
        return [[getattr(one, name) for one in line] for line in cut]

    offset = np.array(field("offset"))
    return Batch(
        step=step,
        rows=(0, layout.rows),
        tokens=np.array(field("token"), dtype=np.uint32),
        targets=np.array(field("target"), dtype=np.int32),
        doc_id=np.array(field("doc_id")),
        offset=offset,
        reset=offset[:, 0] == 0,
        epoch=np.array(field("epoch"))[:, 0],
    )


def assert_equal_batches(ours: Batch, theirs: Batch) -> None:
    """Every field, its type included."""
    for field in fields(Batch):
        left, right = getattr(ours, field.name), getattr(theirs, field.name)
        np.testing.assert_array_equal(left, right, err_msg=field.name)
        if isinstance(left, np.ndarray):
            assert (left.dtype, left.shape) == (right.dtype, right.shape), field.name


def walk(
    server: RowServer, state: RowsState, steps: int, rows: tuple[int, int] | None = None
) -> Iterator[tuple[Batch, RowsState]]:
    """`steps` batches, each with the state after it, one read for each."""
    for _ in range(steps):
        block = server.read(state, 1, rows or (0, server.layout.rows))
        state = block.after
        yield block.batch(0), state


def through_json(state: RowsState) -> RowsState:
    """Saved and loaded."""
    return RowsState.from_json(json.loads(json.dumps(state.to_json())))


def assert_resumes_exactly(server: RowServer, *, steps: int, tail: int) -> None:
    """Save at every step, restore, and compare all that follows: batches and states."""
    whole = list(walk(server, server.initial_state(), steps + tail))
    states = [server.initial_state(), *(state for _, state in whole)]
    for cut in range(steps + 1):
        resumed = walk(server, through_json(states[cut]), tail)
        for number, (batch, state) in enumerate(resumed, start=cut):
            assert_equal_batches(batch, whole[number][0])
            assert state == whole[number][1] == through_json(state)


@st.composite
def corpora(draw: st.DrawFn, least: int = 1) -> Positions:
    """Some documents: empty, short and long ones, some of them held out."""
    length = st.one_of(st.integers(0, 3), st.integers(0, 40))
    lengths = draw(st.lists(length, min_size=least, max_size=least + 12))
    held_out = draw(st.sets(st.integers(0, len(lengths) - 1), max_size=len(lengths) - least))
    return Positions(lengths, sorted(held_out))


@st.composite
def runs(draw: st.DrawFn) -> tuple[Positions, Layout]:
    """A corpus and rows that it can fill."""
    rows = draw(st.integers(1, 6))
    layout = Layout(
        rows=rows,
        segment=draw(st.integers(1, 12)),
        seed=draw(st.integers(0, 2**63 - 1)),
        shuffle=draw(st.sampled_from(["global", "block", "none"])),
        block=draw(st.integers(1, 5)),
        boundary=draw(st.sampled_from(["pack", "pad"])),
    )
    if not draw(st.booleans()):
        return draw(corpora(least=rows)), layout
    weights = draw(st.lists(st.integers(1, 5), min_size=2, max_size=3))
    parts = [draw(corpora(least=-(-rows * weight // sum(weights)))) for weight in weights]
    held_out = np.concatenate([part.doc_ids("validation") + base for base, part in _based(parts)])
    mixture = [(len(part.lengths), weight) for part, weight in zip(parts, weights, strict=True)]
    lengths = np.concatenate([part.lengths for part in parts])
    return Positions(lengths.tolist(), held_out.tolist(), mixture=mixture), layout


def _based(parts: Sequence[Positions]) -> Iterator[tuple[int, Positions]]:
    base = 0
    for part in parts:
        yield base, part
        base += len(part.lengths)
