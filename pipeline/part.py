"""Documents -> one Arrow file, and the file -> its documents again, not copied.

Rows are documents. The file is plain Arrow IPC, uncompressed, so that a reader maps it and a
document is a slice; record batches are bounded, so that a writer holds one of them and no more.
"""

import hashlib
import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.arrow_arrays import from_arrow, texts_to_arrow, to_arrow
from pipeline.errors import DataError, missing_file
from pipeline.files import local_path, read_bytes, writing_whole

FORMAT = "longrow-part-1"
SPLITS = ("train", "validation")  # a document's split is an index into these
BATCH_TOKENS = 4_000_000
Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHead:
    """What a part says of itself.

    Attributes:
        key: Of the task it holds; also its name.
        tokenizer: sha256 of the tokenizer whose ids it holds.
        vocab_size: No id is as large as this.
        eod: The id after each document's own.
        dtype: `uint16` or `uint32`.
    """

    key: str
    tokenizer: str
    vocab_size: int
    eod: int
    dtype: str


class Encoded(NamedTuple):
    """One row of a part; `tokens` (n,) without EOD, of int32 or what fits into it.

    A tuple, since a build makes one for every document: four times as fast as a dataclass.
    """

    uid: str
    source: str
    record: int
    split: int
    num_bytes: int
    num_chars: int
    num_words: int
    tokens: npt.NDArray[Any]


def dtype_for(vocab_size: int) -> str:
    """The smallest type for ids 0 .. vocab_size - 1."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class PartWriter:
    """Takes documents; writes a batch whenever enough tokens have come together."""

    def __init__(self, sink: IO[bytes], head: PartHead, sources: Sequence[str]) -> None:
        self._sink = _Hashed(sink)
        self._head = head
        self._sources = texts_to_arrow(sources)
        self._source_at = {source: i for i, source in enumerate(sources)}
        self._eod = np.array([head.eod], np.int32)
        self._columns: list[tuple[Any, ...]] = []  # of each batch of documents
        # Fresh room for every batch would cost more than what is done in it.
        self._ids = np.empty(BATCH_TOKENS, head.dtype)  # `_num_waiting` of them wait
        self._wide = np.empty(0, np.int32)  # those that come, before they are narrowed
        self._num_waiting = 0
        self._schema = _schema(head)
        self._kind = self._schema.field("tokens").type.value_type
        self._file = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), self._schema)

    def add(self, documents: Sequence[Encoded]) -> None:
        """Take documents, the fresher from the encoder the better: their ids are narrowed at once.

        Raises:
            DataError: One holds an id that is outside the vocabulary.
        """
        begin, room = 0, BATCH_TOKENS - self._num_waiting
        for end, document in enumerate(documents, start=1):
            room -= len(document.tokens) + 1
            if room <= 0:
                self._take(documents[begin:end])
                self._flush()
                begin, room = end, BATCH_TOKENS
        self._take(documents[begin:])

    def close(self) -> tuple[int, str]:
        """Write what waits and the footer; return the file's size in bytes and its sha256."""
        if self._columns:
            self._flush()
        self._file.close()
        return self._sink.size, self._sink.digest.hexdigest()

    def _take(self, documents: Sequence[Encoded]) -> None:
        if not documents:
            return
        uids, sources, *numbers, tokens = zip(*documents, strict=True)
        lengths = [len(found) + 1 for found in tokens]
        self._wide = _with_room(self._wide, sum(lengths))
        ids = self._wide[: sum(lengths)]
        np.concatenate(
            [piece for found in tokens for piece in (found, self._eod)], out=ids, casting="safe"
        )
        self._check(ids, documents)
        begin, end = self._num_waiting, self._num_waiting + len(ids)
        self._ids = _with_room(self._ids, end)
        self._ids[begin:end] = ids
        self._num_waiting = end
        places = [self._source_at[source] for source in sources]
        self._columns.append((uids, places, *numbers, lengths))

    def _flush(self) -> None:
        uids, places, records, splits, *numbers, lengths = (
            list(chain(*column)) for column in zip(*self._columns, strict=True)
        )
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        columns = [
            texts_to_arrow(uids),
            pa.DictionaryArray.from_arrays(to_arrow(places, pa.int32()), self._sources),
            to_arrow(records, pa.int64()),
            to_arrow(splits, pa.uint8()),
            *(to_arrow(column, pa.int64()) for column in numbers),
            pa.LargeListArray.from_arrays(
                to_arrow(offsets, pa.int64()),
                to_arrow(self._ids[: self._num_waiting], self._kind),
            ),
        ]
        self._file.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._columns, self._num_waiting = [], 0

    def _check(self, ids: npt.NDArray[Any], documents: Sequence[Encoded]) -> None:
        """A cast to 16 bits would turn a wrong id into a right one: look before it."""
        if ids.min() >= 0 and ids.max() < self._head.vocab_size:
            return
        wrong = int(np.flatnonzero((ids < 0) | (ids >= self._head.vocab_size))[0])
        ends = np.cumsum([len(d.tokens) + 1 for d in documents])
        document = documents[int(np.searchsorted(ends, wrong, side="right"))]
        raise DataError(
            f"{document.source} at byte {document.record}: the tokenizer gave id "
            f"{int(ids[wrong]):,}, and its vocabulary ends at {self._head.vocab_size - 1:,}. The "
            "tokenizer file is damaged or of another kind: train it anew."
        )


def _with_room(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The array, or a longer one that begins with it."""
    if size <= len(array):
        return array
    longer = np.empty(max(size, 2 * len(array)), array.dtype)
    longer[: len(array)] = array
    return longer


@contextmanager
def writing_part(url: str, head: PartHead, sources: Sequence[str]) -> Iterator[PartWriter]:
    """A part to fill; it appears under its name when the block ends well (after `close`)."""
    with writing_whole(url) as sink:
        yield PartWriter(sink, head, sources)


class Part:
    """A part, mapped. Its arrays live as long as anything that looks at them."""

    def __init__(self, url: str, data: bytes | IO[bytes] | None = None) -> None:
        """Map it; `data` is its content, or the file open, where that has been fetched already."""
        schema, self._batches = open_arrow(url, data)
        self.head = _head(schema, url)
        ends = np.cumsum([0, *(batch.num_rows for batch in self._batches)]).tolist()
        self._first, self.num_documents = ends[:-1], ends[-1]
        lists = [batch.column("tokens") for batch in self._batches]
        self._values = [from_arrow(column.values) for column in lists]
        self._offsets = [from_arrow(column.offsets) for column in lists]

    def tokens(self, row: int) -> Tokens:
        """(n + 1,) ids of a document and EOD, a view into the file."""
        batch = bisect_right(self._first, row) - 1
        offsets = self._offsets[batch]
        row -= self._first[batch]
        return self._values[batch][offsets[row] : offsets[row + 1]]

    def num_tokens(self) -> Counts:
        """(documents,) tokens of each, EOD not counted."""
        lengths = [np.diff(offsets) - 1 for offsets in self._offsets]
        return np.concatenate([np.zeros(0, np.int64), *lengths])

    def numbers(self, name: str) -> Counts:
        """(documents,) of a column of whole numbers."""
        columns = [from_arrow(batch.column(name)) for batch in self._batches]
        return np.concatenate([np.zeros(0, np.int64), *columns]).astype(np.int64)

    def value(self, name: str, row: int) -> Any:
        """One cell, as Python has it."""
        batch = bisect_right(self._first, row) - 1
        return self._batches[batch].column(name)[row - self._first[batch]].as_py()

    def uids(self) -> pa.ChunkedArray:
        return pa.chunked_array([b.column("uid") for b in self._batches], type=pa.string())


def open_arrow(
    url: str, data: bytes | IO[bytes] | None = None
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Map a local Arrow file, or `data` if it is one; read a remote one into memory.

    The file is closed again: the batches keep the mapping, and no descriptor is held for a part.

    Raises:
        DataError: It is missing, or no whole Arrow file.
    """
    try:
        with _source(url, data) as source:
            reader = pa.ipc.open_file(source)
            return reader.schema, [reader.get_batch(i) for i in range(reader.num_record_batches)]
    except FileNotFoundError as error:
        raise missing_file(url) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{url} is no whole Arrow file ({error}). Remove it and run `longrow build` again."
        ) from error


def _source(url: str, data: bytes | IO[bytes] | None) -> pa.NativeFile:
    if data is None:
        path = local_path(url)
        return pa.memory_map(str(path)) if path else pa.BufferReader(read_bytes(url))
    if isinstance(data, bytes):
        return pa.BufferReader(data)
    return pa.memory_map(f"/dev/fd/{data.fileno()}")  # by its name it may be gone


def _field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _schema(head: PartHead) -> pa.Schema:
    ids = pa.uint16() if head.dtype == "uint16" else pa.uint32()
    fields = [
        _field("uid", pa.string()),
        _field("source", pa.dictionary(pa.int32(), pa.string())),
        _field("record", pa.int64()),
        _field("split", pa.uint8()),
        _field("num_bytes", pa.int64()),
        _field("num_chars", pa.int64()),
        _field("num_words", pa.int64()),
        _field("tokens", pa.large_list(ids)),
    ]
    return pa.schema(
        fields,
        metadata={
            "format": FORMAT,
            "task": head.key,
            "tokenizer": head.tokenizer,
            "vocab_size": str(head.vocab_size),
            "eod": str(head.eod),
        },
    )


def _head(schema: pa.Schema, url: str) -> PartHead:
    said = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
    if said.get("format") != FORMAT:
        raise DataError(
            f"{url} is of format {said.get('format', 'unknown')!r}, this version reads {FORMAT!r}. "
            "Remove it and run `longrow build` again."
        )
    return PartHead(
        key=said["task"],
        tokenizer=said["tokenizer"],
        vocab_size=int(said["vocab_size"]),
        eod=int(said["eod"]),
        dtype=str(schema.field("tokens").type.value_type),
    )


class _Hashed(io.RawIOBase):
    """A sink that counts and hashes what passes."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self.digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.digest.update(data)
        self.size += self._sink.write(data)
        return len(data)


def copied(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column that does not keep its part open."""
    chunks = [pa.concat_arrays([chunk, chunk.slice(0, 0)]) for chunk in column.chunks]
    return pa.chunked_array(chunks, column.type)
