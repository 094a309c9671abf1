"""One JSON object -> its document, or the reject that says why it is none.

Two parsers read a record. The fast one is believed only where both must agree: an object whose
text and id are plain. Whatever else it sees or refuses is judged by the standard library alone, so
no verdict and no reason hangs on it.
"""

import json
from typing import Any

from pipeline.corpus import Document, Reject, SourceOptions
from pipeline.json_values import DEEPEST, is_too_deep, levels_of
from pipeline.reasons import (
    BROKEN_JSON,
    LONE_SURROGATE,
    NO_TEXT,
    NOT_AN_OBJECT,
    NOT_UTF8,
    WRONG_TYPE,
)

_PLAIN_INT = 1 << 63  # a longer number is no plain id


def json_record(source: str, offset: int, line: bytes, options: SourceOptions) -> Document | Reject:
    """The document of a record, or why it is none.

    Args:
        source: Name of the file.
        offset: Byte where the record begins.
        line: The record.
        options: Keys of text and id.
    """
    import orjson  # here: a machine that reads no JSON need not have it

    try:
        value = orjson.loads(line)
    except ValueError:
        return _by_the_book(source, offset, line, options)
    if type(value) is not dict or levels_of(value) > DEEPEST:
        return _by_the_book(source, offset, line, options)
    text = _lookup(value, options.text_key)
    given = _lookup(value, options.id_key)
    if type(text) is not str:
        return _by_the_book(source, offset, line, options)
    if type(given) is int and -_PLAIN_INT < given < _PLAIN_INT:
        given = str(given)
    elif given is None:
        given = f"{source}:{offset}"
    elif type(given) is not str:
        return _by_the_book(source, offset, line, options)
    return Document(uid=given, source=source, record=offset, text=text)


def _by_the_book(
    source: str, offset: int, line: bytes, options: SourceOptions
) -> Document | Reject:
    def reject(reason: str, detail: str, *, at: int = 0) -> Reject:
        return Reject(
            source=source, record=offset, offset=offset + at, reason=reason, detail=detail
        )

    if is_too_deep(line):  # each parser has another bound, and this one asks the stack
        return reject(BROKEN_JSON, f"more than {DEEPEST} levels of brackets")
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02X}: {error.reason}"
        return reject(NOT_UTF8, found, at=error.start)
    except ValueError as error:
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
        (text + uid).encode()
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
