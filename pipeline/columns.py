"""Parquet and Arrow files -> stretches of bounded size, and the two columns that matter of each.

A record is known by its row in the file, counted from 0.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.archives import DamagedArchiveError
from pipeline.arrow_blocks import (
    UnknownMessageError,
    is_big_endian,
    rows_of_file,
    rows_of_message,
)
from pipeline.errors import DataError
from pipeline.files import local_path, open_binary, size_of
from pipeline.forms import Form

_SLICE = 4_096  # rows that are copied out at a time
_BROKEN = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowIndexError,
    pa.ArrowKeyError,
    OSError,
    pa.ArrowSerializationError,
    UnicodeDecodeError,
    UnknownMessageError,
)
_BYTES = {  # what kinds of text are, whether or not they are UTF-8
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


@dataclass(frozen=True, slots=True)
class Block:
    """One row group or record batch: texts as bytes, ids as strings or None."""

    first: int  # row in the file
    num_bytes: int  # on disk, about
    texts: pa.Array  # large_binary
    ids: pa.Array | None  # large_binary

    def update(self, digest: Callable[[Any], None]) -> None:
        """Feed all that the documents depend on to a hash."""
        digest(b"%d %d\n" % (self.first, len(self.texts)))
        for column in (self.texts, self.ids):
            if column is not None:
                for part in _content(column):
                    digest(part)

    def rows(self) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Row in the file, text and id of each."""
        for begin in range(0, len(self.texts), _SLICE):
            texts = self.texts.slice(begin, _SLICE).to_pylist()
            ids = self.ids.slice(begin, _SLICE).to_pylist() if self.ids is not None else None
            for index, text in enumerate(texts):
                yield self.first + begin + index, text, ids[index] if ids else None


def group_starts(url: str, form: Form, *, text_key: str) -> list[int]:
    """Where each row group or record batch begins, about, in bytes; [] if the file is damaged.

    Raises:
        DataError: There is no column of text with the name that was given.
    """
    size = size_of(url) or 0
    try:
        with _opened(url, form) as file:
            _check(url, file.schema, text_key)
            weights = file.weights(size)
    except DamagedArchiveError:
        return []
    return [0, *accumulate(weights)][: len(weights)]


def read_blocks(
    url: str, form: Form, *, start: int, end: int, text_key: str, id_key: str
) -> Iterator["Block | Damage"]:
    """The row groups or batches that begin in [start, end), or what is wrong with one."""
    starts = group_starts(url, form, text_key=text_key)
    try:
        with _opened(url, form) as file:
            firsts = file.firsts() if starts else []
            for index, place in enumerate(starts):
                if start <= place < end:
                    yield file.block(index, firsts[index], text_key, id_key)
    except DamagedArchiveError as error:
        yield Damage(0, str(error))


@dataclass(frozen=True, slots=True)
class _File:
    schema: pa.Schema
    groups: int
    rows: Callable[[], list[int]]  # of each group
    sizes: list[int]  # of each group in bytes; [] where the format does not say
    read: Callable[[int, list[str]], Any]  # group, columns -> table or batch

    def block(self, index: int, first: int, text_key: str, id_key: str) -> "Block | Damage":
        kind = _find(self.schema, id_key)
        ids = kind is not None and (_is_bytes(kind) or pa.types.is_integer(kind))
        wanted = [text_key, id_key] if ids else [text_key]
        try:
            table = self.read(index, wanted)
            texts = _column(table, text_key)
            names = _column(table, id_key) if ids else None
        except _BROKEN as error:
            return Damage(first, str(error))
        size = self.sizes[index] if self.sizes else texts.nbytes
        return Block(first, size, texts, names)

    def firsts(self) -> list[int]:
        """The row of the file at which each group begins, and the one after the last."""
        try:
            return [0, *accumulate(self.rows())]
        except _BROKEN as error:
            raise DamagedArchiveError(str(error)) from error

    def weights(self, size: int) -> list[int]:
        """Bytes of each group, about; all together below those of the file."""
        even = size // max(self.groups, 1)
        return [max(weight, 1) for weight in self.sizes or [even] * self.groups]


@dataclass(frozen=True, slots=True)
class Damage:
    """A row group or batch that cannot be read, or (from row 0) a file."""

    first: int
    detail: str
    num_bytes: int = 0

    def update(self, digest: Callable[[Any], None]) -> None:
        """As `Block.update`."""
        digest(b"damaged %d " % self.first + self.detail.encode())


@contextmanager
def _opened(url: str, form: Form) -> Iterator[_File]:
    with _source(url) as source:
        try:
            file = _parquet(source) if form == "parquet" else _arrow(source, form)
            _ = file.schema.names  # they are decoded when they are asked for
        except _BROKEN as error:
            raise DamagedArchiveError(f"{form}: {error}") from error
        yield file


@contextmanager
def _source(url: str) -> Iterator[Any]:
    path = local_path(url)
    if path is not None:
        with pa.memory_map(str(path)) if path.stat().st_size else pa.BufferReader(b"") as mapped:
            yield mapped
        return
    with open_binary(url) as file:
        yield pa.PythonFile(file, mode="r")


def _parquet(source: Any) -> _File:
    file = pq.ParquetFile(source, page_checksum_verification=True)
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    sizes = [
        sum(group.column(i).total_compressed_size for i in range(group.num_columns))
        for group in groups
    ]

    def read(index: int, columns: list[str]) -> Any:
        return file.read_row_group(index, columns=columns, use_threads=False)

    rows = [group.num_rows for group in groups]
    return _File(file.schema_arrow, len(rows), lambda: rows, sizes, read)


def _arrow(source: Any, form: Form) -> _File:
    """A batch may be compressed: none is read but those that are asked for."""
    if form == "arrow stream":
        return _arrow_stream(source)
    reader = pa.ipc.open_file(source)
    return _File(
        reader.schema,
        reader.num_record_batches,
        lambda: rows_of_file(source),
        [],
        lambda i, _: reader.get_batch(i),
    )


def _arrow_stream(source: Any) -> _File:
    schema = pa.ipc.open_stream(source).schema
    source.seek(0)
    head, *messages = pa.ipc.MessageReader.open_stream(source)  # mapped: nothing is copied
    plain = all(message.type == "record batch" for message in messages)  # no dictionaries between
    if not plain or is_big_endian(head.metadata):  # Arrow turns only a whole stream around
        source.seek(0)
        batches = list(pa.ipc.open_stream(source))
        rows = [batch.num_rows for batch in batches]
        return _File(schema, len(rows), lambda: rows, [], lambda i, _: batches[i])
    return _File(
        schema,
        len(messages),
        lambda: [rows_of_message(message.metadata) for message in messages],
        [],
        lambda i, _: pa.ipc.read_record_batch(messages[i], schema),
    )


def _find(schema: pa.Schema, key: str) -> pa.DataType | None:
    """The type of a column, by its name or by a path of names with dots; None if missing.

    None also where several columns bear the name: none of them is the one that was meant.
    """
    if key in schema.names:
        return schema.field(key).type if schema.names.count(key) == 1 else None
    first, *steps = key.split(".")
    kind = schema.field(first).type if schema.names.count(first) == 1 else None
    for step in steps:
        if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            return None
        kind = kind.field(step).type
    return kind


def _check(url: str, schema: pa.Schema, text_key: str) -> None:
    kind = _find(schema, text_key)
    if schema.names.count(text_key) > 1:
        raise DataError(
            f"{url} has {schema.names.count(text_key)} columns {text_key!r}, and one was wanted. "
            "Rename the others, or name another with --text-key."
        )
    if kind is None:
        raise DataError(
            f"{url} has no column {text_key!r}; it has {', '.join(schema.names)}. Name the column "
            "of the text with --text-key."
        )
    if not _is_bytes(kind):
        raise DataError(
            f"Column {text_key!r} of {url} is of type {kind}, and text was wanted. Name another "
            "with --text-key."
        )


def _is_bytes(kind: pa.DataType) -> bool:
    """Whether a column holds text, or bytes that may be text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary")
    return any(getattr(pa.types, test)(kind) for test in tests)


def _column(table: Any, key: str) -> pa.Array:
    """A column as large_binary, whatever kind of text or whole numbers it holds."""
    first, *steps = [key] if key in table.schema.names else key.split(".")
    column = table.column(first)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    column.validate()
    for step in steps:
        column = column.flatten()[column.type.get_field_index(step)]
    if pa.types.is_integer(column.type):
        return column.cast(pa.large_string()).cast(pa.large_binary())
    return _whole(column).cast(pa.large_binary())


def _whole(column: pa.Array) -> pa.Array:
    """Texts as bytes, each of which lies where the column has any.

    Arrow itself takes what a file says of that as true, and would read outside the file.

    Raises:
        pa.ArrowInvalid: One lies elsewhere.
    """
    if pa.types.is_dictionary(column.type):
        words = _whole(column.dictionary)
        return pa.DictionaryArray.from_arrays(column.indices, words).dictionary_decode()
    found = column.view(_BYTES.get(column.type, column.type))
    found.validate(full=True)
    return found


def _content(column: pa.Array) -> Iterator[Any]:
    """Bytes that say a column of strings: which are missing, lengths, letters."""
    if column.null_count:
        yield column.is_null().to_numpy(zero_copy_only=False).tobytes()
    _, offsets, letters = column.buffers()
    if not len(column) or offsets is None:
        return
    ends = np.frombuffer(offsets, np.int64, count=len(column) + 1, offset=8 * column.offset)
    yield np.diff(ends).tobytes()
    if letters is not None:
        yield memoryview(letters)[int(ends[0]) : int(ends[-1])]
