"""Columns of a table -> documents, and a reject for each row that is none."""

from collections.abc import Iterator

from pipeline.columns import Block, Damage
from pipeline.corpus import NO_OFFSET, Document, Reject, SourceOptions
from pipeline.reasons import DAMAGED, NO_TEXT, NOT_UTF8, TOO_LARGE


def documents_of(
    block: Block | Damage, source: str, options: SourceOptions
) -> Iterator[Document | Reject]:
    """Documents and rejects of a row group or batch, in its order."""
    if isinstance(block, Damage):
        yield _reject(source, block.first, DAMAGED, f"{block.detail}; its rows are lost")
        return
    for row, data, given in block.rows():
        if data is None:
            detail = f"no value in column {options.text_key!r}"
            yield _reject(source, row, NO_TEXT, detail)
            continue
        if len(data) > options.max_record_bytes:
            detail = f"longer than {options.max_record_bytes:,} bytes"
            yield _reject(source, row, TOO_LARGE, detail)
            continue
        try:
            text = data.decode()
            uid = f"{source}:{row}" if given is None else given.decode()
        except UnicodeDecodeError as error:
            detail = f"byte 0x{error.object[error.start]:02X} at {error.start:,}: {error.reason}"
            yield _reject(source, row, NOT_UTF8, detail)
            continue
        yield Document(uid=uid, source=source, record=row, text=text)


def _reject(source: str, row: int, reason: str, detail: str) -> Reject:
    return Reject(source=source, record=row, offset=NO_OFFSET, reason=reason, detail=detail)
