"""Texts of any length -> short pieces within a budget of bytes, each as likely as any other."""

import heapq
import random
from collections.abc import Iterable, Iterator

PIECE_CHARS = 2_000  # at most 8,000 bytes: sentencepiece drops what is longer than it is told


def sample_pieces(texts: Iterable[str], *, sample_bytes: int, seed: int) -> list[str]:
    """A seeded draw over all pieces of all texts, in the order of the corpus.

    Every piece gets a number by its place, and those with the smallest are kept: one pass, memory
    for the sample only, and a long document gives as much as its length. The same texts and seed
    give the same sample.

    Args:
        texts: Whole documents.
        sample_bytes: UTF-8 bytes to keep; all pieces if the texts hold no more.
        seed: Of the draw.
    """
    draw = random.Random(seed)  # noqa: S311 (a sample, no secret); random() is stable for ever
    kept: list[tuple[float, int, str, int]] = []  # (minus the number, place, piece, bytes)
    size = 0
    for place, piece in enumerate(piece for text in texts for piece in pieces_of(text)):
        length = len(piece.encode())
        heapq.heappush(kept, (-draw.random(), place, piece, length))
        size += length
        while size > sample_bytes and len(kept) > 1:
            size -= heapq.heappop(kept)[3]
    return [piece for _, _, piece, _ in sorted(kept, key=lambda entry: entry[1])]


def pieces_of(text: str) -> Iterator[str]:
    """Lines with their ends, those above `PIECE_CHARS` cut (at a blank if there is one)."""
    for line in text.splitlines(keepends=True):
        at = 0
        while len(line) - at > PIECE_CHARS:
            blank = line.rfind(" ", at + 1, at + PIECE_CHARS)
            stop = blank if blank > 0 else at + PIECE_CHARS
            yield line[at:stop]
            at = stop
        yield line[at:]
