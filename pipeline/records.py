"""A task's input -> its documents and rejects: read once, hashed, unpacked, parsed."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

from pipeline.archives import DamagedArchiveError, unpack
from pipeline.columns import Block, Damage, read_blocks
from pipeline.corpus import Document, Extent, Reject, SourceOptions, Task
from pipeline.errors import DataError
from pipeline.files import CHUNK, open_binary, stamp_of
from pipeline.forms import TABLES
from pipeline.lines import Chunks
from pipeline.overlaps import between_records, overlaps_itself
from pipeline.parsers import parse
from pipeline.reasons import DAMAGED
from pipeline.tables import documents_of
from pipeline.transcode import in_utf8

HOLD_BYTES = 64 << 20  # twice a task of the usual size
Input = tuple[int, bytes] | Block | Damage


@dataclass(frozen=True, slots=True)
class Held:
    """A task's input after one look at it.

    Attributes:
        identity: sha256 of what each extent holds: of its bytes on disk, or of a table's columns.
        inputs: The input itself, extent by extent; None for what was too large to keep.
    """

    identity: tuple[str, ...]
    inputs: tuple[tuple[Input, ...] | None, ...]


def hold(task: Task, *, limit: int = HOLD_BYTES) -> Held:
    """Read a task's input and hash it; keep it, so that it need not be read and hashed again.

    Args:
        task: What to read.
        limit: Bytes to keep; what goes above is read a second time, and held against its hash.

    Raises:
        DataError: A file changed meanwhile.
    """
    identity: list[str] = []
    inputs: list[tuple[Input, ...] | None] = []
    left = limit
    for extent in task.extents:
        digest = hashlib.sha256()
        kept: list[Input] = []
        size = 0
        stamp = stamp_of(extent.url)
        for piece in _hashed(_input(extent, task.options), digest.update):
            size += _size(piece)
            if size <= left:
                kept.append(piece)
            else:
                kept.clear()
        if stamp_of(extent.url) != stamp:
            raise _changed(extent)
        identity.append(digest.hexdigest())
        inputs.append(tuple(kept) if size <= left else None)
        left -= size if size <= left else 0
    return Held(tuple(identity), tuple(inputs))


def identify(task: Task) -> list[str]:
    """The sha256 of each extent's input."""
    return list(hold(task, limit=0).identity)


def read_task(
    task: Task, *, held: Held | None = None, watch: Callable[[int], None] = lambda _: None
) -> Iterator[Document | Reject]:
    """Documents and rejects of a task, in the order of the corpus.

    Args:
        task: What to read.
        held: What `hold` said; what it did not keep is read now and held against its identity.
        watch: Told the number of bytes on disk of each piece read.

    Raises:
        DataError: A file changed since it was identified.
    """
    for index, extent in enumerate(task.extents):
        kept = held.inputs[index] if held else None
        digest = hashlib.sha256()
        fresh = kept is None and held is not None
        source = _input(extent, task.options) if kept is None else kept
        pieces = _watched(_hashed(source, digest.update) if fresh else source, watch)
        for item in _read(extent, pieces, task.options):
            if task.options.newlines == "lf" and isinstance(item, Document) and "\r\n" in item.text:
                yield replace(item, text=item.text.replace("\r\n", "\n"))
            else:
                yield item
        for _ in pieces:  # what lies behind damage belongs to the identity too
            pass
        if fresh and held and digest.hexdigest() != held.identity[index]:
            raise _changed(extent)


def _changed(extent: Extent) -> DataError:
    return DataError(
        f"{extent.source} changed while it was read. Let the corpus be written to its end "
        "first, then run the build again."
    )


def read_texts(tasks: Iterable[Task]) -> Iterator[str]:
    """The good texts alone, as a tokenizer's training wants them."""
    for task in tasks:
        for item in read_task(task):
            if isinstance(item, Document):
                yield item.text


def _read(
    extent: Extent, pieces: Iterator[Any], options: SourceOptions
) -> Iterator[Document | Reject]:
    if extent.form in TABLES:
        for block in pieces:
            yield from documents_of(block, extent.source, options)
        return
    reached = extent.start
    try:
        chunks = in_utf8(_unpacked(extent, pieces), options.encoding)
        for item in parse(extent.form, extent.source, chunks, options):
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


def _input(extent: Extent, options: SourceOptions) -> Iterator[Input]:
    if extent.form in TABLES:
        yield from read_blocks(
            extent.url,
            extent.form,
            start=extent.start,
            end=extent.end,
            text_key=options.text_key,
            id_key=options.id_key,
        )
        return
    if mark := extent.mark(options):
        # a record begins at `start` if what stands before it ends one
        if overlaps_itself(mark):  # where it counts hangs on what stands before
            with open_binary(extent.url) as file:
                yield from between_records(file, extent.start, extent.end, mark)
            return
        with open_binary(extent.url, at=max(extent.start - len(mark), 0)) as file:
            yield from _whole_records(file, extent.start, extent.end, mark)
        return
    with open_binary(extent.url) as file:
        position = 0
        while chunk := file.read(CHUNK):
            yield position, chunk
            position += len(chunk)


def _whole_records(
    file: IO[bytes], start: int, end: int, mark: bytes
) -> Iterator[tuple[int, bytes]]:
    """Pieces of the records that begin in [start, end), with the marks that end them.

    The file stands as many bytes before `start` as a mark is long, or at its beginning.
    """
    position = max(start - len(mark), 0)
    inside = start == 0
    before = b""  # the end of the last piece: a mark may begin there
    while chunk := file.read(CHUNK):
        seen, base = before + chunk, position - len(before)
        begin = len(before)
        if not inside:
            found = seen.find(mark)
            inside = found >= 0
            begin = found + len(mark) if inside else len(seen)
            if base + begin >= end:
                return
        if inside:
            found = seen.find(mark, max(end - len(mark) - base, 0))
            stop = found + len(mark) if found >= 0 else len(seen)
            if stop > begin:
                yield base + begin, seen[begin:stop]
            if found >= 0:
                return
        position += len(chunk)
        before = seen[len(seen) - len(mark) + 1 :]


def _unpacked(extent: Extent, chunks: Chunks) -> Iterator[tuple[int, bytes]]:
    if extent.packing == "plain":
        yield from chunks
        return
    position = 0
    for data in unpack((chunk for _, chunk in chunks), extent.packing):
        yield position, data
        position += len(data)


def _hashed(pieces: Iterable[Input], digest: Callable[[Any], None]) -> Iterator[Input]:
    for piece in pieces:
        if isinstance(piece, tuple):
            digest(piece[1])
        else:
            piece.update(digest)
        yield piece


def _watched(pieces: Iterable[Input], watch: Callable[[int], None]) -> Iterator[Input]:
    for piece in pieces:
        watch(len(piece[1]) if isinstance(piece, tuple) else piece.num_bytes)
        yield piece


def _size(piece: Input) -> int:
    if isinstance(piece, tuple):
        return len(piece[1])
    return piece.texts.nbytes if isinstance(piece, Block) else 0
