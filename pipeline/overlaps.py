"""Stretches of a file whose separator may overlap itself, as two line ends do among three.

Such marks count from the beginning of the file on, each behind the end of the one before. But
where no mark begins before a place and ends behind it, reading may begin all the same: whatever
counts before, the next mark from there on counts. Such a place is looked for backwards.
"""

from collections.abc import Iterator
from typing import IO

CHUNK = 1 << 20  # bytes read at a time


def overlaps_itself(mark: bytes) -> bool:
    """Whether two marks can have bytes in common."""
    return any(mark.startswith(mark[i:]) for i in range(1, len(mark)))


def between_records(
    file: IO[bytes], start: int, end: int, mark: bytes
) -> Iterator[tuple[int, bytes]]:
    """Pieces of the records that begin in [start, end), with the marks that end them.

    Args:
        file: Can be read at any place.
        start: Byte of the file.
        end: Byte of the file, above it.
        mark: Ends a record.
    """
    begin = _record_at(file, start, mark)
    if begin is None or begin >= end:
        return
    stop = _record_at(file, end, mark)
    file.seek(begin)
    while stop is None or begin < stop:
        chunk = file.read(CHUNK if stop is None else min(CHUNK, stop - begin))
        if not chunk:
            return
        yield begin, chunk
        begin += len(chunk)


def _record_at(file: IO[bytes], place: int, mark: bytes) -> int | None:
    """The first byte from `place` on where a record begins; None if none does."""
    if place <= 0:
        return 0
    at = _free_place(file, max(place - len(mark), 0), mark)
    file.seek(at)
    seen = b""  # from `at` on
    while chunk := file.read(CHUNK):
        seen += chunk
        begin = 0
        while (found := seen.find(mark, begin)) >= 0:
            begin = found + len(mark)
            if at + begin >= place:
                return at + begin
        kept = max(begin, len(seen) - len(mark) + 1)
        at, seen = at + kept, seen[kept:]
    return None


def _free_place(file: IO[bytes], place: int, mark: bytes) -> int:
    """The last byte up to `place` with no mark that begins before it and ends behind it."""
    overlap = len(mark) - 1
    low, seen = place, b""  # what stands from `low` on
    while place > 0:
        if place - overlap < low:
            high = place + overlap
            low = max(place - max(CHUNK, overlap), 0)
            file.seek(low)
            seen = file.read(high - low)
        if len(set(mark)) == 1:  # a run of one byte may be long, and is left in one step
            run = len(seen[: place - low].rstrip(mark[:1]))
            if run == place - low:
                return place
            place = low + run
            if run:
                return place
            continue
        found = seen.rfind(mark, max(place - overlap - low, 0), place + overlap - low)
        if found < 0:
            return place
        place = low + found
    return 0
