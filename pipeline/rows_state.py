"""Where all rows stand between two steps: the whole of what a resume needs of the data.

Of the size of the rows and not of the corpus; plain JSON (docs/formats.md), checked when loaded,
and against the documents when rows are read from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.layout import Layout, RowsError
from pipeline.lengths import Int64s, Mixed, Source, mixed

VERSION = 1
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """How far the documents of one source are dealt.

    Attributes:
        epoch: The pass that the next document belongs to.
        next_index: Its index in the order of that pass.
        tokens_dealt: Inputs of all documents dealt so far, over all passes; with
            `boundary = "pad"` the pads behind them too.
    """

    epoch: int = 0
    next_index: int = 0
    tokens_dealt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Where other rows took over (pipeline/reshard.py): positions count from there.

    Attributes:
        step: Steps that were done.
        tokens_dealt: Of all sources then, less those of the documents below.
        pending: doc_id and epoch of documents that were in progress and are still to be dealt, once
            more and before all others; they are not counted again.
    """

    step: int
    tokens_dealt: int
    pending: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsState:
    """The state after `step` steps; the last document dealt to a row says where the row is.

    Attributes:
        step: Steps consumed.
        sources: One for each source of documents.
        doc_id: (B,) the last document dealt to each row; -1 before the first.
        epoch: (B,) the pass that document belongs to.
        began: (B,) the row position of its first input.
        restart: Where the rows were dealt anew; None if they never were.
    """

    step: int
    sources: tuple[SourceState, ...]
    doc_id: Int64s
    epoch: Int64s
    began: Int64s
    restart: Restart | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowsState):
            return NotImplemented
        ours = (self.step, self.sources, self.restart)
        return ours == (other.step, other.sources, other.restart) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _PER_ROW
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType] # arrays cannot be hashed

    @property
    def rows(self) -> int:
        """B."""
        return len(self.doc_id)

    @property
    def first_step(self) -> int:
        """Steps done when the rows began as they are now: position 0 of each."""
        return self.restart.step if self.restart else 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: numbers, lists and tables."""
        return {
            "version": VERSION,
            "step": self.step,
            "sources": [
                {field.name: getattr(source, field.name) for field in fields(source)}
                for source in self.sources
            ],
            "rows": {name: getattr(self, name).tolist() for name in _PER_ROW},
        } | ({"restart": _restart_to_json(self.restart)} if self.restart else {})

    @classmethod
    def from_json(cls, data: Any) -> "RowsState":
        """Read back what `to_json` gave.

        Raises:
            DataError: It is not that; says what is off. (Whether it fits the documents is asked
                when rows are read from it.)
        """
        keys = ("version", "step", "sources", "rows")
        again = isinstance(data, dict) and "restart" in data
        table = _table(data, "the state", (*keys, "restart") if again else keys)
        if table["version"] != VERSION or isinstance(table["version"], bool):
            raise _wrong(
                f"version is {table['version']!r}, this program reads version {VERSION}: use the "
                "longrow that wrote it"
            )
        sources = _list(table["sources"], "sources")
        if not sources:
            raise _wrong("sources is empty, one is wanted")
        rows = _table(table["rows"], "rows", _PER_ROW)
        columns = {name: _list(rows[name], f"rows.{name}") for name in _PER_ROW}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1 or not lengths["doc_id"]:
            raise _wrong(f"the rows differ in number: {lengths}")
        return cls(
            step=_whole(table["step"], "step"),
            sources=tuple(_source(source, f"sources[{i}]") for i, source in enumerate(sources)),
            doc_id=_column(columns["doc_id"], "doc_id", least=-1),
            epoch=_column(columns["epoch"], "epoch"),
            began=_column(columns["began"], "began"),
            restart=_restart(table["restart"]) if again else None,
        )


_PER_ROW = ("doc_id", "epoch", "began")


def initial_state(layout: Layout, sources: int = 1) -> RowsState:
    """Before the first step: nothing dealt."""
    return RowsState(
        step=0,
        sources=(SourceState(),) * sources,
        doc_id=np.full(layout.rows, -1, dtype=np.int64),
        epoch=np.zeros(layout.rows, dtype=np.int64),
        began=np.zeros(layout.rows, dtype=np.int64),
    )


def row_lengths(state: RowsState, documents: Source | Mixed, layout: Layout) -> Int64s:
    """Text tokens of each row's last document, the state being one of these documents and rows.

    Returns:
        (B,) int64; -1 before the first document of a row.

    Raises:
        RowsError: The state was made with other rows or another segment.
        DataError: It was made with other documents.
    """
    mixture = mixed(documents)
    if state.rows != layout.rows:
        raise RowsError(
            f"The saved state has {state.rows} rows and rows.rows = {layout.rows}: a run keeps its "
            f"rows. Set rows.rows to {state.rows}, resume with --reshard, or start a new run."
        )
    if len(state.sources) != len(mixture.sources):
        raise _wrong(
            f"it mixes {len(state.sources)} sources, this run reads {len(mixture.sources)}"
        )
    count = sum(source.count for source in mixture.sources)
    fresh = state.step == state.first_step
    if fresh:
        _check_nothing_read(state, layout)
    for dealt, source in zip(state.sources, mixture.sources, strict=True):
        if dealt.next_index >= max(source.count, 1):
            what = f"{dealt.next_index:,} documents of epoch {dealt.epoch} were dealt"
            raise _changed(what, source.count)
    num_tokens = mixture.num_tokens_of(state.doc_id)
    if not fresh:
        _check_places(state, mixture, num_tokens, layout)
    ends = np.where(num_tokens < 0, 0, state.began + layout.taken(num_tokens))
    wanted = sum(source.tokens_dealt for source in state.sources)
    if state.restart:
        wanted -= state.restart.tokens_dealt + _still_to_deal(state.restart, mixture, layout)
    if int(ends.sum()) != wanted:
        raise _changed(
            f"{wanted:,} tokens were dealt, now its rows hold {int(ends.sum()):,}", count
        )
    return num_tokens


def _check_nothing_read(state: RowsState, layout: Layout) -> None:
    """No row has begun yet."""
    empty = initial_state(layout, len(state.sources))
    if state.restart:
        empty = replace(empty, step=state.step, sources=state.sources, restart=state.restart)
    if state != empty:
        raise _wrong(f"documents were dealt before step {state.step}")


def _check_places(state: RowsState, mixture: Mixed, num_tokens: Int64s, layout: Layout) -> None:
    """Every row stands inside its document, which is one that was dealt."""
    count = sum(source.count for source in mixture.sources)
    strange = np.flatnonzero(num_tokens < 0)
    if strange.size:
        row = int(strange[0])
        raise _changed(f"row {row} reads document {state.doc_id[row]}", count)
    dealing = np.array([source.epoch for source in state.sources])
    dealing = dealing[mixture.source_of(state.doc_id)]
    ahead = np.flatnonzero(state.epoch > dealing)
    if ahead.size:
        raise _wrong(f"row {ahead[0]} is ahead of the epoch being dealt, {dealing[ahead[0]]}")
    ends = state.began + layout.taken(num_tokens)
    steps = state.step - state.first_step
    reached = steps * layout.segment
    astray = np.flatnonzero((state.began >= reached) | (ends < reached))
    if astray.size:
        row = int(astray[0])
        raise _changed(
            f"row {row} has read {reached:,} tokens in {steps:,} steps of {layout.segment}, in "
            f"document {state.doc_id[row]} from {state.began[row]:,} to {ends[row]:,}",
            count,
        )


def _still_to_deal(restart: Restart, mixture: Mixed, layout: Layout) -> int:
    """Row positions that the documents to be dealt once more will take."""
    pending = np.array([doc_id for doc_id, _ in restart.pending], dtype=np.int64)
    num_tokens = mixture.num_tokens_of(pending)
    if (num_tokens < 0).any():
        lost = int(pending[num_tokens < 0][0])
        count = sum(source.count for source in mixture.sources)
        raise _changed(f"document {lost} was in progress when the rows changed", count)
    return int(layout.taken(num_tokens).sum())


def _changed(what: str, count: int) -> DataError:
    return DataError(
        f"The saved state of the rows does not fit the store: {what}; the store holds {count:,} "
        "documents for it. The store or the segment was changed since: resume with the store and "
        "the rows.segment that the run began with."
    )


def _source(value: Any, name: str) -> SourceState:
    names = tuple(field.name for field in fields(SourceState))
    table = _table(value, name, names)
    return SourceState(**{key: _whole(table[key], f"{name}.{key}") for key in names})


def _restart_to_json(restart: Restart) -> dict[str, Any]:
    return {
        "step": restart.step,
        "tokens_dealt": restart.tokens_dealt,
        "pending": [list(document) for document in restart.pending],
    }


def _restart(value: Any) -> Restart:
    table = _table(value, "restart", ("step", "tokens_dealt", "pending"))
    pending = _list(table["pending"], "restart.pending")
    for number, document in enumerate(pending):
        if len(_list(document, f"restart.pending[{number}]")) != 2:
            raise _wrong(f"restart.pending[{number}] is {document!r}, doc_id and epoch are wanted")
    doc_ids, epochs = (
        [
            _whole(document[i], f"restart.pending[{number}]")
            for number, document in enumerate(pending)
        ]
        for i in (0, 1)
    )
    return Restart(
        step=_whole(table["step"], "restart.step"),
        tokens_dealt=_whole(table["tokens_dealt"], "restart.tokens_dealt", -_LARGEST),
        pending=tuple(zip(doc_ids, epochs, strict=True)),
    )


def _column(values: list[Any], name: str, least: int = 0) -> Int64s:
    checked = [_whole(value, f"rows.{name}[{row}]", least) for row, value in enumerate(values)]
    return np.array(checked, dtype=np.int64)


def _whole(value: Any, name: str, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LARGEST:
        raise _wrong(f"{name} is {value!r}, a whole number from {least} is wanted")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(f"{name} is {type(value).__name__}, a list is wanted")
    return value


def _table(value: Any, name: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict) or set(value) != set(keys):
        found = sorted(map(str, value)) if isinstance(value, dict) else type(value).__name__
        raise _wrong(f"{name} holds {found}, wanted are the keys {sorted(keys)}")
    return value


def _wrong(what: str) -> DataError:
    return DataError(
        f"The saved state of the rows cannot be used: {what}. The file was changed or is damaged: "
        "resume from another checkpoint."
    )
