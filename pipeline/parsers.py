r"""Bytes of a file of some form -> its documents, and a reject for each record that is none.

Records end at b"\n" and nowhere else: U+2028 and the like stand inside JSON strings and texts. A
bad record costs its neighbours nothing.
"""

from collections.abc import Callable, Iterator

from pipeline.corpus import Document, Reject, SourceOptions
from pipeline.delimited import parse_csv
from pipeline.forms import BOM, TITLE, Form
from pipeline.json_records import json_record
from pipeline.json_values import split_values
from pipeline.lines import Chunks, split_at, split_lines
from pipeline.reasons import NOT_UTF8, TOO_LARGE

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
    parsers: dict[Form, Parser] = {
        "jsonl": _jsonl,
        "json": _json,
        "csv": parse_csv,
        "txt": _txt,
        "wikitext": _wikitext,
    }
    return parsers[form](source, chunks, options)


def _jsonl(source: str, chunks: Chunks, options: SourceOptions) -> Iterator[Document | Reject]:
    for offset, line in split_lines(chunks, limit=options.max_record_bytes):
        if line is None:
            yield _too_large(source, offset, options)
            continue
        record = line if offset else line.removeprefix(BOM)
        if record and not record.isspace():  # a file may be a BOM and no more
            yield json_record(source, offset, record, options)


def _json(source: str, chunks: Chunks, options: SourceOptions) -> Iterator[Document | Reject]:
    for offset, value in split_values(without_bom(chunks), limit=options.max_record_bytes):
        if value is None:
            yield _too_large(source, offset, options)
        else:
            yield json_record(source, offset, value, options)


def without_bom(chunks: Chunks) -> Chunks:
    """The same pieces, less a BOM at the very start (which lies in one piece)."""
    for offset, chunk in chunks:
        if offset == 0 and chunk.startswith(BOM):
            yield len(BOM), chunk[len(BOM) :]
        else:
            yield offset, chunk


def _txt(source: str, chunks: Chunks, options: SourceOptions) -> Iterator[Document | Reject]:
    if options.separator:
        mark = options.separator.encode()
        for begins, text in split_at(chunks, mark, limit=options.max_record_bytes):
            if text is None:
                yield _too_large(source, begins, options)
            else:
                yield _text(source, begins, text, uid=f"{source}:{begins}")
        return
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

    for offset, line in split_lines(chunks, limit=options.max_record_bytes):
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
