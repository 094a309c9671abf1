"""Rows and buffers of an Arrow file's record batches, from what stands around them: none is read.

Arrow's own reader tells a batch's rows only after it has decompressed the batch. Footer and
messages are flatbuffers; of these the few fields that matter are read here.

Source: https://arrow.apache.org/docs/format/Columnar.html, File.fbs and Message.fbs there.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MAGIC = b"ARROW1"
_BLOCK_BYTES = 24  # of a footer's entry: int64 offset, int32 size of the message, int64 of its body
_RECORD_BATCHES = 3  # field of a footer
_HEADER_KIND, _HEADER = 1, 2  # fields of a message
_IS_RECORD_BATCH = 3  # that kind
_ENDIANNESS = 0  # field of a schema
_LENGTH, _BUFFERS = 0, 2  # fields of a record batch
_BUFFER_BYTES = 16  # int64 offset in the body, int64 size


class UnknownMessageError(ValueError):
    """The bytes are not what the format says."""


def rows_of_file(source: Any) -> list[int]:
    """Rows of each record batch of an Arrow file (not a stream), in the footer's order.

    Args:
        source: An open `pyarrow.NativeFile`.

    Raises:
        UnknownMessageError: It is none, or damaged where the rows are written.
    """
    return [_rows(batch) for batch, _ in _batches(source)]


def buffers_of_file(source: Any) -> list[tuple[int, list[int]]]:
    """Rows of each record batch of an Arrow file, and the bytes at which its buffers begin.

    Args:
        source: What has its `size()` and `read_at(size, at)`.

    Raises:
        UnknownMessageError: As `rows_of_file`.
    """
    found: list[tuple[int, list[int]]] = []
    for batch, body in _batches(source):
        places = batch.structs(_BUFFERS, "<qq", stride=_BUFFER_BYTES)
        found.append((_rows(batch), [body + offset for offset, _ in places]))
    return found


def rows_of_message(message: Any) -> int:
    """Rows of the record batch that a message announces."""
    return _rows(_batch(memoryview(message)))


def is_big_endian(message: Any) -> bool:
    """Whether the numbers in the bodies that follow a schema's message have their high byte first.

    Arrow's reader of whole files and streams turns them around, its reader of one batch does not.
    """
    schema = _Table.root(memoryview(message)).below(_HEADER)
    return schema.number(_ENDIANNESS, "<h") != 0


def _batches(source: Any) -> "Iterator[tuple[_Table, int]]":
    """The record batches as they are announced, and where the body of each begins."""
    for at, size in _blocks(source):
        yield _batch(_unwrapped(source.read_at(size, at))), at + size


def _batch(message: memoryview) -> "_Table":
    table = _Table.root(message)
    if table.number(_HEADER_KIND, "<B") != _IS_RECORD_BATCH:
        raise UnknownMessageError("a record batch was announced and another message found")
    return table.below(_HEADER)


def _rows(batch: "_Table") -> int:
    rows = batch.number(_LENGTH, "<q")
    if rows < 0:
        raise UnknownMessageError(f"a record batch of {rows:,} rows is announced")
    return rows


def _blocks(source: Any) -> list[tuple[int, int]]:
    """Offset of each record batch's message, and bytes of the message without its body."""
    end = source.size() - len(_MAGIC) - 4
    tail = source.read_at(4 + len(_MAGIC), max(end, 0))
    if end < 0 or tail[4:] != _MAGIC:
        raise UnknownMessageError("it does not end as an Arrow file")
    (size,) = struct.unpack("<i", tail[:4])
    if not 0 < size <= end:
        raise UnknownMessageError(f"its footer is said to have {size:,} bytes")
    footer = _Table.root(memoryview(source.read_at(size, end - size)))
    blocks = footer.structs(_RECORD_BATCHES, "<qi", stride=_BLOCK_BYTES)
    for at, length in blocks:
        if at < 0 or length < 0 or at + length > end:
            raise UnknownMessageError(f"a message is said to have {length:,} bytes from {at:,} on")
    return blocks


def _unwrapped(message: bytes) -> memoryview:
    """A message without the size before it (and the mark before that, since Arrow 0.15)."""
    return memoryview(message)[8 if message[:4] == b"\xff\xff\xff\xff" else 4 :]


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a flatbuffer."""

    data: memoryview
    at: int

    @classmethod
    def root(cls, data: memoryview) -> "_Table":
        return cls(data, _unpack("<I", data, 0))

    def place(self, field: int) -> int | None:
        """Where a field stands; None if it has its default."""
        names = self.at - _unpack("<i", self.data, self.at)
        entry = 4 + 2 * field
        if entry >= _unpack("<H", self.data, names):
            return None
        offset = _unpack("<H", self.data, names + entry)
        return self.at + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        place = self.place(field)
        return 0 if place is None else _unpack(kind, self.data, place)

    def below(self, field: int) -> "_Table":
        place = self.place(field)
        if place is None:
            raise UnknownMessageError("a message says nothing of its content")
        return _Table(self.data, place + _unpack("<I", self.data, place))

    def structs(self, field: int, kind: str, *, stride: int) -> list[tuple[int, int]]:
        place = self.place(field)
        if place is None:
            return []
        start = place + _unpack("<I", self.data, place)
        count = _unpack("<I", self.data, start)
        return [_unpacked(kind, self.data, start + 4 + stride * i) for i in range(count)]


def _unpack(kind: str, data: memoryview, at: int) -> int:
    return _unpacked(kind, data, at)[0]


def _unpacked(kind: str, data: memoryview, at: int) -> Any:
    if not 0 <= at <= len(data) - struct.calcsize(kind):
        raise UnknownMessageError(f"its footer or a message is damaged (it names byte {at:,})")
    return struct.unpack_from(kind, data, at)
