"""A text too long for a row -> several, cut at line ends, none with more tokens than allowed."""

import re

from pipeline.errors import DataError
from pipeline.tokenizer import Ids, Tokenizer

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
Piece = tuple[bytes, Ids]  # UTF-8, and its ids as a document of its own


def cut_text(data: bytes, tokenizer: Tokenizer, *, max_tokens: int) -> list[Piece]:
    """Cut a text into documents; joined they are the text again, byte for byte.

    A text within the bound is one piece. A cut falls behind a line end; only a line that is too
    long itself is cut inside, at a blank where there is one, and never inside a character.

    Args:
        data: The text in UTF-8.
        tokenizer: Decides how long a piece is: each is counted as it will be stored.
        max_tokens: Of a piece, EOD not counted; 0 leaves every text whole.

    Raises:
        DataError: A single character has more tokens.
    """
    ids = tokenizer.encode_utf8(data)
    if not max_tokens or len(ids) <= max_tokens:
        return [(data, ids)]
    units = [u for line in _LINE.findall(data) for u in _within(line, tokenizer, max_tokens)]
    pieces: list[Piece] = []
    at = 0
    while at < len(units):
        stop, size = at, 0
        while stop < len(units) and (stop == at or size + units[stop][1] <= max_tokens):
            size += units[stop][1]
            stop += 1
        piece, ids = _encoded(units[at:stop], tokenizer)
        while len(ids) > max_tokens:  # ids depend on what stands beside: the sum was a guess
            stop -= 1
            piece, ids = _encoded(units[at:stop], tokenizer)
        pieces.append((piece, ids))
        at = stop
    return pieces


def _encoded(units: list[tuple[bytes, int]], tokenizer: Tokenizer) -> Piece:
    data = b"".join(unit for unit, _ in units)
    return data, tokenizer.encode_utf8(data)


def _within(line: bytes, tokenizer: Tokenizer, max_tokens: int) -> list[tuple[bytes, int]]:
    """A line, or its parts if it is too long, each with its number of tokens."""
    count = len(tokenizer.encode_utf8(line))
    if count <= max_tokens:
        return [(line, count)]
    parts: list[tuple[bytes, int]] = []
    step = len(line) * max_tokens // count
    at = 0
    while at < len(line):
        stop = _before(line, at, at + step)
        while (count := len(tokenizer.encode_utf8(line[at:stop]))) > max_tokens:
            shorter = _before(line, at, at + min((stop - at) * max_tokens // count, stop - at - 1))
            if shorter >= stop:
                raise DataError(
                    f"The character {line[at:stop].decode()!r} alone has {count} tokens, and "
                    f"--max-document-tokens allows {max_tokens}. Allow more."
                )
            stop = shorter
        parts.append((line[at:stop], count))
        at = stop
    return parts


def _before(line: bytes, at: int, stop: int) -> int:
    """The last good place for a cut in (at, stop], or the end of the character at `at`."""
    if stop >= len(line):
        return len(line)
    blank = line.rfind(b" ", at + (stop - at) // 2 + 1, stop + 1)
    if blank > at:
        return blank
    while stop > at and _inside(line, stop):
        stop -= 1
    if stop <= at:
        stop = at + 1
        while stop < len(line) and _inside(line, stop):
            stop += 1
    return stop


def _inside(line: bytes, place: int) -> bool:
    """Whether a cut at `place` would part the bytes of a character, or CR from LF."""
    return line[place] & 0xC0 == 0x80 or line[place - 1 : place + 1] == b"\r\n"
