r"""Bytes of a file of some form -> its documents, and a reject for each record that is none.

Records end at b"\n" and nowhere else: U+2028 and the like stand inside JSON strings and texts. A
bad record costs its neighbours nothing.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipeline.corpus import Document, Reject, SourceOptions
from pipeline.forms import BOM, TITLE, Form

DAMAGED = "damaged archive"
TOO_LARGE = "too large"
NOT_UTF8 = "not UTF-8"
BROKEN_JSON = "broken JSON"
NOT_AN_OBJECT = "not an object"
NO_TEXT = "no text"
WRONG_TYPE = "wrong type"
LONE_SURROGATE = "lone surrogate"

Chunks = Iterable[tuple[int, bytes]]  # (byte of the unpacked file where a piece begins, the piece)
Parser = Callable[[str, Chunks, SourceOptions], Iterator[Document | Reject]]


def parse(
    form: Form, source: str, chunks: Chunks, options: SourceOptions
) -> Iterator[Document | Reject]:
    """Documents and rejects of one file or stretch of it, in its order.

    Args:
        form: Of the file.
        source: Its name.
        chunks: Its bytes, unpacked; what they raise passes through.
        options: How records are read.
    """
    parsers: dict[Form, Parser] = {"jsonl": _jsonl, "txt": _txt, "wikitext": _wikitext}
    return parsers[form](source, chunks, options)


def _lines(chunks: Chunks, *, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Each line with its end, and where it begins; None for one longer than `limit` bytes."""
    pieces: list[bytes] = []
    size = 0
    begins: int | None = None
    for offset, chunk in chunks:
        at = 0
        while at < len(chunk):
            stop = chunk.find(b"\n", at) + 1 or len(chunk)
            begins = offset + at if begins is None else begins
            size += stop - at
            if size <= limit:
                pieces.append(chunk[at:stop])
            if chunk[stop - 1] == 0x0A:
                yield begins, b"".join(pieces) if size <= limit else None
                pieces, size, begins = [], 0, None
            at = stop
    if begins is not None:
        yield begins, b"".join(pieces) if size <= limit else None


def _jsonl(source: str, chunks: Chunks, options: SourceOptions) -> Iterator[Document | Reject]:
    for offset, line in _lines(chunks, limit=options.max_record_bytes):
        if line is None:
            yield _too_large(source, offset, options)
            continue
        record = line.removeprefix(BOM) if offset == 0 else line
        if record.strip():
            yield _json_record(source, offset, record, options)


def _json_record(
    source: str, offset: int, line: bytes, options: SourceOptions
) -> Document | Reject:
    def reject(reason: str, detail: str, *, at: int = 0) -> Reject:
        return Reject(
            source=source, record=offset, offset=offset + at, reason=reason, detail=detail
        )

    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return reject(NOT_UTF8, _bad_byte(error), at=error.start)
    except (ValueError, RecursionError) as error:
        return reject(BROKEN_JSON, str(error))
    if not isinstance(value, dict):
        return reject(NOT_AN_OBJECT, f"a JSON {type(value).__name__}")
    text = _lookup(value, options.text_key)
    if text is None:
        return reject(NO_TEXT, f"no key {options.text_key!r} in it")
    if not isinstance(text, str):
        return reject(WRONG_TYPE, f"{options.text_key!r} is a JSON {type(text).__name__}")
    given = _lookup(value, options.id_key)
    named = isinstance(given, str | int) and not isinstance(given, bool)
    uid = str(given) if named else f"{source}:{offset}"
    try:
        if b"\\u" in line:  # only an escape can bring half a pair into valid UTF-8
            text.encode()
            uid.encode()
    except UnicodeEncodeError as error:
        return reject(
            LONE_SURROGATE, f"U+{ord(error.object[error.start]):04X} without its other half"
        )
    return Document(uid=uid, source=source, record=offset, text=text)


def _lookup(record: dict[str, Any], key: str) -> Any:
    if key in record:
        return record[key]
    found: Any = record
    for step in key.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _txt(source: str, chunks: Chunks, options: SourceOptions) -> Iterator[Document | Reject]:
    pieces: list[bytes] = []
    size = 0
    for _, chunk in chunks:
        size += len(chunk)
        if size <= options.max_record_bytes:
            pieces.append(chunk)
    if size > options.max_record_bytes:
        yield _too_large(source, 0, options)
    else:
        yield _text(source, 0, b"".join(pieces), uid=source)


def _wikitext(source: str, chunks: Chunks, options: SourceOptions) -> Iterator[Document | Reject]:
    """Articles with their titles, each from its title line to the next one.

    A title stands after a blank line; a line of the same shape in running text does not count.
    """
    pieces: list[bytes] = []
    begins, size, after_blank = 0, 0, True

    def article() -> Iterator[Document | Reject]:
        if size > options.max_record_bytes:
            yield _too_large(source, begins, options)
        elif begins or b"".join(pieces).strip():  # blank lines before the first title are none
            yield _text(source, begins, b"".join(pieces), uid=f"{source}:{begins}")

    for offset, line in _lines(chunks, limit=options.max_record_bytes):
        if after_blank and line is not None and TITLE.fullmatch(line):
            yield from article()
            pieces, begins, size = [], offset, 0
        size += options.max_record_bytes + 1 if line is None else len(line)
        if line is not None and size <= options.max_record_bytes:
            pieces.append(line)
        after_blank = line is not None and not line.strip()
    yield from article()


def _text(source: str, begins: int, data: bytes, *, uid: str) -> Document | Reject:
    mark = len(BOM) if begins == 0 and data.startswith(BOM) else 0
    try:
        text = data[mark:].decode()
    except UnicodeDecodeError as error:
        return Reject(
            source=source,
            record=begins,
            offset=begins + mark + error.start,
            reason=NOT_UTF8,
            detail=_bad_byte(error),
        )
    return Document(uid=uid, source=source, record=begins, text=text)


def _too_large(source: str, offset: int, options: SourceOptions) -> Reject:
    return Reject(
        source=source,
        record=offset,
        offset=offset,
        reason=TOO_LARGE,
        detail=f"longer than {options.max_record_bytes:,} bytes",
    )


def _bad_byte(error: UnicodeDecodeError) -> str:
    return f"byte 0x{error.object[error.start]:02X}: {error.reason}"
