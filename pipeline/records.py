"""A task's bytes -> its documents and rejects: read, unpacked, hashed, parsed."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from pipeline.archives import DamagedArchiveError, unpack
from pipeline.corpus import Document, Extent, Reject, SourceOptions, Task
from pipeline.errors import DataError
from pipeline.files import CHUNK, open_binary
from pipeline.parsers import DAMAGED, Chunks, parse


def identify(task: Task) -> list[str]:
    """The sha256 of each extent's own bytes as they lie on disk."""
    return [_sha256(_on_disk(extent)) for extent in task.extents]


def read_task(
    task: Task, *, identity: list[str] | None = None, watch: Callable[[int], None] = lambda _: None
) -> Iterator[Document | Reject]:
    """Documents and rejects of a task, in the order of the corpus.

    Args:
        task: What to read.
        identity: What `identify` said; the bytes read now are held against it.
        watch: Told the number of bytes on disk of each piece read.

    Raises:
        DataError: A file changed since it was identified.
    """
    for index, extent in enumerate(task.extents):
        digest = hashlib.sha256()
        chunks = _watched(_on_disk(extent), digest.update, watch)
        yield from _read(extent, chunks, task.options)
        for _ in chunks:  # what lies behind damage belongs to the identity too
            pass
        if identity is not None and digest.hexdigest() != identity[index]:
            raise DataError(
                f"{extent.source} changed while it was read. Let the corpus be written to its end "
                "first, then run the build again."
            )


def read_texts(tasks: Iterable[Task]) -> Iterator[str]:
    """The good texts alone, as a tokenizer's training wants them."""
    for task in tasks:
        for item in read_task(task):
            if isinstance(item, Document):
                yield item.text


def _read(extent: Extent, chunks: Chunks, options: SourceOptions) -> Iterator[Document | Reject]:
    reached = extent.start
    try:
        for item in parse(extent.form, extent.source, _unpacked(extent, chunks), options):
            yield item
            reached = item.record
    except DamagedArchiveError as error:
        yield Reject(
            source=extent.source,
            record=reached,
            offset=reached,
            reason=DAMAGED,
            detail=f"{error}; what follows the last good record is lost",
        )


def _on_disk(extent: Extent) -> Iterator[tuple[int, bytes]]:
    with open_binary(extent.url) as file:
        if extent.form == "jsonl" and extent.packing == "plain":
            yield from _whole_lines(file, extent.start, extent.end)
            return
        position = 0
        while chunk := file.read(CHUNK):
            yield position, chunk
            position += len(chunk)


def _whole_lines(file: IO[bytes], start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of the lines that begin in [start, end)."""
    position = max(start - 1, 0)  # a line begins at `start` if the byte before it ends one
    file.seek(position)
    inside = start == 0
    while chunk := file.read(CHUNK):
        begin = 0
        if not inside:
            begin = chunk.find(b"\n") + 1
            inside = begin > 0
            if position + (begin or len(chunk)) >= end:
                return
        if inside:
            stop = chunk.find(b"\n", max(end - 1 - position, 0))
            yield position + begin, chunk[begin : stop + 1 or None]
            if stop >= 0:
                return
        position += len(chunk)


def _unpacked(extent: Extent, chunks: Chunks) -> Iterator[tuple[int, bytes]]:
    if extent.packing == "plain":
        yield from chunks
        return
    position = 0
    for data in unpack((chunk for _, chunk in chunks), extent.packing):
        yield position, data
        position += len(data)


def _sha256(chunks: Chunks) -> str:
    digest = hashlib.sha256()
    for _, chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _watched(
    chunks: Chunks, digest: Callable[[bytes], None], watch: Callable[[int], None]
) -> Iterator[tuple[int, bytes]]:
    for offset, chunk in chunks:
        digest(chunk)
        watch(len(chunk))
        yield offset, chunk
