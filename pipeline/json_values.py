"""A JSON file of an array, or of objects over many lines -> its records as bytes, one by one.

Only quotes and brackets are looked at, so that a file of any size passes in bounded memory and a
record that is broken inside costs no other.
"""

import re
from collections.abc import Iterator
from typing import Any

from pipeline.lines import Chunks

_SIGN = re.compile(rb'["\[\]{},]')
_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # to the closing quote
_BACKSLASH = 0x5C
_OPEN_OR_CLOSE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)  # strings whole
DEEPEST = 256  # levels of a record: no parser's own bound, nor the stack of who asks, comes first


def levels_of(value: Any) -> int:
    """How many dicts and lists stand in each other; 0 for what is neither."""
    levels, here = 0, [value] if isinstance(value, dict | list) else []
    while here:
        levels += 1
        here = [
            inner
            for outer in here
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
    return levels


def is_too_deep(record: bytes) -> bool:
    """Whether brackets outside of strings stand in each other more than `DEEPEST` times."""
    if record.count(b"[") + record.count(b"{") <= DEEPEST:
        return False
    depth = 0
    for found in _OPEN_OR_CLOSE.finditer(record):
        sign = found[0]
        if sign in (b"[", b"{"):
            depth += 1
            if depth > DEEPEST:
                return True
        elif sign in (b"]", b"}"):
            depth -= 1
    return False


def split_values(chunks: Chunks, *, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Elements of the arrays of a file, and values outside of any, with the byte where each begins.

    None stands for one longer than `limit` bytes. What is left over when the file ends in the
    middle of a value is given as it is: parsing it will tell.
    """
    scan = _Scan(limit)
    for offset, chunk in chunks:
        yield from scan.feed(offset, chunk)
    yield from scan.end()


class _Scan:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()  # from the beginning of the record on
        self._base = 0  # byte of the file where the buffer begins
        self._dropped = False  # the record grew above the limit, its beginning is gone
        self._at = 0  # looked at so far
        self._depth = 0
        self._in_array = False
        self._in_string = False

    def feed(self, offset: int, chunk: bytes) -> Iterator[tuple[int, bytes | None]]:
        if not self._buffer and not self._dropped:
            self._base = offset
        self._buffer += chunk
        while self._advance():
            sign = self._buffer[self._at - 1]
            if sign in b"[" and not self._depth and not self._in_array:
                yield from self._cut(self._at - 1, skip=1)
                self._in_array = True
            elif sign in b"[{":
                self._depth += 1
            elif sign in b"]}" and self._depth:
                self._depth -= 1
                if not self._depth and not self._in_array:
                    yield from self._cut(self._at)
            elif sign in b"]" and self._in_array:
                yield from self._cut(self._at - 1, skip=1)
                self._in_array = False
            elif sign in b"," and not self._depth and self._in_array:
                yield from self._cut(self._at - 1, skip=1)
        if len(self._buffer) > self._limit:
            self._dropped = True
            kept = self._buffer[self._at :]  # a backslash whose letter is still to come
            self._buffer, self._at = kept, 0

    def end(self) -> Iterator[tuple[int, bytes | None]]:
        yield from self._cut(len(self._buffer))
        if self._in_array:
            yield self._base, b"["  # never closed

    def _advance(self) -> bool:
        """Go on to the next sign outside of strings; False if more bytes are wanted."""
        while True:
            if self._in_string:
                found = _STRING.match(self._buffer, self._at)
                self._at = found.end() if found else self._at
                if self._at == len(self._buffer) or self._buffer[self._at] == _BACKSLASH:
                    return False
                self._in_string = False
                self._at += 1
            found = _SIGN.search(self._buffer, self._at)
            if found is None:
                self._at = len(self._buffer)
                return False
            self._at = found.end()
            if self._buffer[self._at - 1] != 0x22:
                return True
            self._in_string = True

    def _cut(self, stop: int, *, skip: int = 0) -> Iterator[tuple[int, bytes | None]]:
        """The record that ends at `stop`, if there is any; the next begins `skip` bytes later."""
        record = bytes(self._buffer[:stop])
        blank = len(record) - len(record.lstrip())
        if self._dropped or len(record) > self._limit:
            yield self._base, None
        elif record.strip():
            yield self._base + blank, record.strip()
        del self._buffer[: stop + skip]
        self._base += stop + skip
        self._at = 0
        self._depth = 0
        self._dropped = False
