"""A finished store: documents by number, mapped and not copied."""

import io
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.arrow_arrays import from_arrow, to_arrow
from pipeline.cache import PartCache
from pipeline.errors import DataError
from pipeline.files import join, local_path
from pipeline.lengths import Mixed, SplitLengths
from pipeline.manifest import INDEX, TOKENIZER, Manifest, faults, read_manifest
from pipeline.open_parts import OpenParts
from pipeline.part import SPLITS, Counts, Part, Tokens, open_arrow
from pipeline.tokenizer import Tokenizer

Split = Literal["train", "validation"]
_AT_ONCE = 1 << 20  # documents whose split is looked at: of a large index nothing is held twice
MIXTURE = "mixture:"  # begins the name of a mixture of stores (mixture.py)


class Store:
    """Read access to a store. Cheap to open in any process; open it there by path.

    A document's number (doc_id) counts all documents of the store in the order of the manifest.
    """

    def __init__(self, url: str, manifest: Manifest, cache: PartCache | None = None) -> None:
        self.url = url
        self.manifest = manifest
        self._parts = OpenParts(
            url, tokenizer=manifest.tokenizer, dtype=manifest.dtype, cache=cache
        )
        self._open = self._parts.open
        self._bases = [0, *accumulate(part.documents for part in manifest.parts)]
        self._tokenizer: Tokenizer | None = None
        self._lengths, self._splits = read_index(join(url, INDEX))
        if len(self._lengths) != manifest.documents or self._bases[-1] != manifest.documents:
            raise DataError(
                f"{url}: index.arrow counts {len(self._lengths):,} documents, the parts "
                f"{self._bases[-1]:,}, the manifest {manifest.documents:,}. Build the store anew."
            )

    @classmethod
    def open(cls, url: str, cache: PartCache | None = None) -> "Store":
        """Open a store after a look at its manifest and at the size of every file.

        Costs one listing of the parts and one pass over index.arrow; no part is opened.

        A name that begins with `mixture:` opens several as one (pipeline/mixture.py).

        Args:
            url: Local folder or URL.
            cache: Keeps the parts of a remote store on this machine; without it they are read into
                memory.

        Raises:
            DataError: No manifest, or something does not fit it; the first fault is named.
            SettingsError: The cache is too small for a part of it.
        """
        if url.startswith(MIXTURE):
            from pipeline.mixture import open_mixture  # which is made of stores

            return open_mixture(url, cache)
        manifest = read_manifest(url)
        for fault in faults(url, manifest, rehash=False):
            raise DataError(fault)
        if cache and local_path(url) is None:
            cache.check(manifest.parts)
        return cls(url, manifest, cache)

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    @property
    def tokenizer_sha256(self) -> str:
        return self.manifest.tokenizer

    @property
    def documents(self) -> int:
        """Documents of all splits; those that were left out as repeated are in none."""
        return self.manifest.documents - self.manifest.dropped

    @property
    def tokens(self) -> int:
        """Tokens of these; EOD not counted."""
        if not self.manifest.dropped:
            return self.manifest.tokens
        return sum(int(self.num_tokens(split).sum()) for split in ("train", "validation"))

    @property
    def vocab_size(self) -> int:
        return self.manifest.vocab_size

    @property
    def bos(self) -> int:
        return self.manifest.bos

    @property
    def eod(self) -> int:
        return self.manifest.eod

    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(join(self.url, TOKENIZER))
        return self._tokenizer

    def num_tokens(self, split: Split) -> Counts:
        """(documents of the split,) tokens of text of each, EOD not counted, in store order."""
        return self._lengths[self.doc_ids(split)]

    def doc_ids(self, split: Split) -> Counts:
        """(documents of the split,) their numbers, in the same order."""
        wanted = SPLITS.index(split)
        found = [
            np.flatnonzero(self._splits[low : low + _AT_ONCE] == wanted) + low
            for low in range(0, len(self._splits), _AT_ONCE)
        ]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def by_length(self, split: Split) -> SplitLengths | Mixed:
        """The documents of a split by length alone, read where they lie."""
        return self.lengths_from(split, base=0)

    def lengths_from(self, split: Split, *, base: int) -> SplitLengths:
        """The same, numbered from `base` on."""
        return SplitLengths(self._lengths, self._splits, SPLITS.index(split), base=base)

    def read(self, doc_id: int) -> Tokens:
        """(n + 1,) ids of a document and EOD: a view into the mapped file."""
        part, row = self._locate(doc_id)
        return part.tokens(row)

    def sizes(self, doc_ids: Sequence[int] | Counts) -> tuple[Counts, Counts, Counts]:
        """Bytes, characters and words of the texts, (len(doc_ids),) each.

        A word is a run of bytes without ASCII blanks.
        """
        ids = np.asarray(doc_ids, dtype=np.int64)
        self._check_range(ids)
        sizes = np.zeros((3, len(ids)), dtype=np.int64)
        of_part = np.searchsorted(self._bases, ids, side="right") - 1
        for index in np.unique(of_part).tolist():
            here = of_part == index
            part, rows = self._part(index), ids[here] - self._bases[index]
            for column, name in enumerate(("num_bytes", "num_chars", "num_words")):
                sizes[column, here] = part.numbers(name)[rows]
        return sizes[0], sizes[1], sizes[2]

    def uid(self, doc_id: int) -> str:
        """The corpus's own id of a document."""
        part, row = self._locate(doc_id)
        return part.value("uid", row)

    def find(self, uid: str) -> int | None:
        """Number of the first document with this id; the ids of part after part are looked at."""
        for index, base in enumerate(self._bases[:-1]):
            row = self._part(index).uids().index(uid).as_py()
            if row >= 0:
                return base + row
        return None

    def origin(self, doc_id: int) -> tuple[str, int]:
        """Source file of a document and the byte where its record begins there."""
        part, row = self._locate(doc_id)
        return part.value("source", row), part.value("record", row)

    def text(self, doc_id: int) -> str:
        """The document's text, decoded from its ids."""
        return self.tokenizer().decode(self.read(doc_id)[:-1])

    def verify(self) -> list[str]:
        """Read everything, hash everything; return all faults, a sentence each."""
        found = list(faults(self.url, self.manifest, rehash=True))
        if not found:
            self._parts.mark_hashed(self.manifest.parts)
            for index in range(len(self.manifest.parts)):
                try:
                    self._part(index)
                except DataError as error:
                    found.append(str(error))
        return found

    def take_over(self, parts: OpenParts) -> None:
        """Use parts that were opened while the store was built: they need not be hashed again."""
        self._parts, self._open = parts, parts.open

    def _locate(self, doc_id: int) -> tuple[Part, int]:
        doc_id = int(doc_id)  # a numpy number makes bisect three times slower
        index = bisect_right(self._bases, doc_id) - 1
        if doc_id < 0 or doc_id >= self._bases[-1]:
            self._check_range(np.array([doc_id]))
        return self._open.get(index) or self._part(index), doc_id - self._bases[index]

    def _part(self, index: int) -> Part:
        return self._parts.part(index, self.manifest.parts[index])

    def _check_range(self, ids: npt.NDArray[np.int64]) -> None:
        wrong = ids[(ids < 0) | (ids >= self._bases[-1])]
        if len(wrong):
            raise IndexError(
                f"{self.url} holds documents 0 to {self._bases[-1] - 1:,}, asked for {wrong[0]:,}."
            )


def write_index(num_tokens: Counts, split: npt.NDArray[np.uint8]) -> bytes:
    """The bytes of index.arrow: length and split of every document, in store order."""
    columns = [to_arrow(num_tokens, pa.int64()), to_arrow(split, pa.uint8())]
    out = io.BytesIO()
    schema = pa.schema([("num_tokens", pa.int64()), ("split", pa.uint8())])
    with pa.ipc.new_file(out, schema) as file:
        file.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return out.getvalue()


def read_index(url: str) -> tuple[Counts, npt.NDArray[np.uint8]]:
    """(documents,) lengths and (documents,) splits, views into the file."""
    batch = open_arrow(url)[1][0]
    return from_arrow(batch.column("num_tokens")), from_arrow(batch.column("split"))


def repeated(columns: Sequence[pa.ChunkedArray]) -> dict[str, int]:
    """Values that stand in the columns more than once, by first sight, with their counts."""
    counts = pa.chunked_array([chunk for c in columns for chunk in c.chunks], pa.string())
    table = counts.value_counts()
    often = table.take(to_arrow(np.flatnonzero(from_arrow(table.field("counts")) > 1), pa.int64()))
    names, numbers = often.field("values").to_pylist(), often.field("counts").to_pylist()
    return dict(zip(names, numbers, strict=True))
