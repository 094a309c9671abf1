r"""Pieces of a file -> its lines. They end at b"\n" and nowhere else, U+2028 is none."""

from collections.abc import Iterable, Iterator

Chunks = Iterable[tuple[int, bytes]]  # (byte of the unpacked file where a piece begins, the piece)


def split_lines(chunks: Chunks, *, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Each line with its end, and where it begins; None for one longer than `limit` bytes."""
    pieces: list[bytes] = []
    size = 0
    begins: int | None = None
    for offset, chunk in chunks:
        at = 0
        while at < len(chunk):
            found = chunk.find(b"\n", at) + 1
            if found and begins is None and found - at <= limit:  # as nearly all lines do
                yield offset + at, chunk[at:found]
                at = found
                continue
            stop = found or len(chunk)
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


def split_at(chunks: Chunks, mark: bytes, *, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """What stands between the marks, and where it begins; None for more than `limit` bytes.

    Behind a mark that ends the file nothing stands.
    """
    kept = bytearray()
    begins = size = 0  # of the text so far; `kept` is all of it, or its end if it is too long
    first = True
    for offset, chunk in chunks:
        if first:
            begins, first = offset, False
        at = max(len(kept) - len(mark) + 1, 0)
        kept += chunk
        while (found := kept.find(mark, at)) >= 0:
            length = size + found
            yield begins, bytes(kept[:found]) if length <= limit else None
            begins += length + len(mark)
            del kept[: found + len(mark)]
            at = size = 0
        if size + len(kept) > limit + len(mark):  # too long whatever comes: its end will do
            dropped = max(len(kept) - len(mark) + 1, 0)
            size += dropped
            del kept[:dropped]
    if size + len(kept):
        yield begins, bytes(kept) if size + len(kept) <= limit else None
