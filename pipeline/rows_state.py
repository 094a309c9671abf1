"""Where all rows stand between two steps: the whole of what a resume needs of the data.

Of the size of the rows and not of the corpus; plain JSON (docs/formats.md), checked when loaded,
and against the documents when rows are read from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.layout import Layout, RowsError
from pipeline.order import Int64s, Lengths

VERSION = 1
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """How far the documents of one source are dealt.

    Attributes:
        epoch: The pass that the next document belongs to.
        next_index: Its index in the order of that pass.
        tokens_dealt: Inputs of all documents dealt so far, over all passes.
    """

    epoch: int = 0
    next_index: int = 0
    tokens_dealt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsState:
    """The state after `step` steps; the last document dealt to a row says where the row is.

    Attributes:
        step: Steps consumed.
        sources: One for each source of documents.
        doc_id: (B,) the last document dealt to each row; -1 before the first.
        epoch: (B,) the pass that document belongs to.
        began: (B,) the row position of its first input.
    """

    step: int
    sources: tuple[SourceState, ...]
    doc_id: Int64s
    epoch: Int64s
    began: Int64s

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowsState):
            return NotImplemented
        return (self.step, self.sources) == (other.step, other.sources) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _PER_ROW
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType] # arrays cannot be hashed

    @property
    def rows(self) -> int:
        """B."""
        return len(self.doc_id)

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
        }

    @classmethod
    def from_json(cls, data: Any) -> "RowsState":
        """Read back what `to_json` gave.

        Raises:
            DataError: It is not that; says what is off. (Whether it fits the documents is asked
                when rows are read from it.)
        """
        table = _table(data, "the state", ("version", "step", "sources", "rows"))
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
        )


_PER_ROW = ("doc_id", "epoch", "began")


def initial_state(layout: Layout) -> RowsState:
    """Before the first step: nothing dealt."""
    return RowsState(
        step=0,
        sources=(SourceState(),),
        doc_id=np.full(layout.rows, -1, dtype=np.int64),
        epoch=np.zeros(layout.rows, dtype=np.int64),
        began=np.zeros(layout.rows, dtype=np.int64),
    )


def row_ends(state: RowsState, lengths: Lengths, layout: Layout) -> Int64s:
    """The row position after each row's last document: its tokens so far.

    Returns:
        (B,) int64.

    Raises:
        RowsError: The state was made with other rows or another segment.
        DataError: It was made with other documents.
    """
    if state.rows != layout.rows:
        raise RowsError(
            f"The saved state has {state.rows} rows and rows.rows = {layout.rows}: a run keeps its "
            f"rows. Set rows.rows to {state.rows}, or start a new run."
        )
    if len(state.sources) != 1:
        raise _wrong(f"it mixes {len(state.sources)} sources, this run reads one")
    if state.step == 0:
        if state != initial_state(layout):
            raise _wrong("documents were dealt before step 0")
        return np.zeros(layout.rows, dtype=np.int64)
    count, (source,) = len(lengths.doc_id), state.sources
    if source.next_index >= count:
        raise _changed(f"{source.next_index:,} documents of epoch {source.epoch} were dealt", count)
    place = np.minimum(np.searchsorted(lengths.doc_id, state.doc_id), count - 1)
    strange = np.flatnonzero(lengths.doc_id[place] != state.doc_id)
    if strange.size:
        row = int(strange[0])
        raise _changed(f"row {row} reads document {state.doc_id[row]}", count)
    ahead = np.flatnonzero(state.epoch > source.epoch)
    if ahead.size:
        raise _wrong(f"row {ahead[0]} is ahead of the epoch being dealt, {source.epoch}")
    ends = state.began + lengths.num_tokens[place] + 1
    reached = state.step * layout.segment
    astray = np.flatnonzero((state.began >= reached) | (ends < reached))
    if astray.size:
        row = int(astray[0])
        raise _changed(
            f"row {row} has read {reached:,} tokens in {state.step:,} steps of {layout.segment}, "
            f"in document {state.doc_id[row]} from {state.began[row]:,} to {ends[row]:,}",
            count,
        )
    if int(ends.sum()) != source.tokens_dealt:
        raise _changed(
            f"{source.tokens_dealt:,} tokens were dealt, now its rows hold {int(ends.sum()):,}",
            count,
        )
    return ends


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
