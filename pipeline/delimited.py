"""CSV and TSV -> documents: the first record names the columns, and quotes are taken at their word.

A record that does not fit (a quote in the wrong place, a column too many) is rejected; nothing is
guessed and no value is changed.
"""

import csv
from collections.abc import Iterator

from pipeline.corpus import Document, Reject, SourceOptions
from pipeline.forms import BOM, columns_of
from pipeline.lines import Chunks, split_lines
from pipeline.reasons import BROKEN_CSV, NO_TEXT, NOT_UTF8, TOO_LARGE, WRONG_COLUMNS


def parse_csv(source: str, chunks: Chunks, options: SourceOptions) -> Iterator[Document | Reject]:
    """Documents and rejects of a file, in its order; a record is known by its first byte."""
    csv.field_size_limit(max(options.max_record_bytes, csv.field_size_limit()))
    lines = _Lines(chunks, limit=options.max_record_bytes)
    head = lines.peek()
    found = columns_of(head.encode(errors="surrogateescape"), text_key=options.text_key)
    if found is None:
        if head:
            yield _reject(source, 0, NO_TEXT, f"no column {options.text_key!r} in the first line")
        return
    delimiter, names = found
    text_at = names.index(options.text_key)
    id_at = names.index(options.id_key) if options.id_key in names else None
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    next(rows)
    while True:
        lines.begin()
        try:
            row = next(rows)
        except StopIteration:
            return
        except _TooLargeError:
            detail = f"longer than {options.max_record_bytes:,} bytes"
            yield _reject(source, lines.begins, TOO_LARGE, detail)
            continue
        except csv.Error as error:
            yield _reject(source, lines.begins, BROKEN_CSV, str(error))
            continue
        if not row:
            continue
        if len(row) != len(names):
            detail = f"{len(row)} columns, the first line names {len(names)}"
            yield _reject(source, lines.begins, WRONG_COLUMNS, detail)
            continue
        uid = row[id_at] if id_at is not None and row[id_at] else f"{source}:{lines.begins}"
        try:
            (row[text_at] + uid).encode()
        except UnicodeEncodeError as error:
            byte = ord(error.object[error.start]) & 0xFF
            yield _reject(source, lines.begins, NOT_UTF8, f"byte 0x{byte:02X}")
            continue
        yield Document(uid=uid, source=source, record=lines.begins, text=row[text_at])


class _TooLargeError(Exception):
    """A record passed the limit; the next one is looked for from the next line on."""


class _Lines:
    """Lines for csv.reader, and where the record began that it is reading.

    No generator: what it raises must not end it.
    """

    def __init__(self, chunks: Chunks, *, limit: int) -> None:
        self._lines = split_lines(chunks, limit=limit)
        self._limit = limit
        self._peeked: tuple[int, bytes | None] | None = None
        self.begins = 0
        self._fresh = True
        self._size = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        offset, line = self._peeked or next(self._lines)
        self._peeked = None
        if self._fresh:
            self.begins, self._fresh, self._size = offset, False, 0
        self._size += self._limit + 1 if line is None else len(line)
        if line is None or self._size > self._limit:
            raise _TooLargeError
        mark = BOM if offset == 0 else b""
        return line.removeprefix(mark).decode(errors="surrogateescape")

    def begin(self) -> None:
        """The next line begins a record."""
        self._fresh = True

    def peek(self) -> str:
        """The first line, which stays where it is."""
        self._peeked = next(self._lines, None)
        if self._peeked is None or self._peeked[1] is None:
            return ""
        return self._peeked[1].decode(errors="surrogateescape")


def _reject(source: str, record: int, reason: str, detail: str) -> Reject:
    return Reject(source=source, record=record, offset=record, reason=reason, detail=detail)
