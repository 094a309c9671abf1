"""A store that is still being built, as far as it is committed; in the end the finished one.

What is known is a beginning of the finished store: its first parts, none left out. Document
numbers, lengths and splits of these stay what they are, so a reader may begin with them.
"""

import hashlib
import time
from bisect import bisect_right
from collections.abc import Callable
from threading import RLock

import numpy as np

from pipeline.cache import PartCache
from pipeline.errors import DataError
from pipeline.files import exists, join
from pipeline.lengths import Lengths, Mixed, Source
from pipeline.manifest import BUILDING, MANIFEST, TOKENIZER, PartEntry
from pipeline.open_parts import OpenParts
from pipeline.part import SPLITS, Counts, Part, Tokens
from pipeline.publish import BuildHead, Committed, line_of, read_head, read_part
from pipeline.store import MIXTURE, Split, Store
from pipeline.tokenizer import Tokenizer

LOOK_S = 0.2  # between two looks at the folder
LONGEST_S = 2.0  # that a look takes: who looks must answer, and beat
SILENCE_S = 3.0  # at its end a build takes back what it said, and then writes the manifest
BUILDS = "building "  # begins what stands for the fingerprint of a store without one


class GrowingStore:
    """Read access to the documents that are there so far. May be used by several threads.

    Attributes:
        url: Where it is built.
        head: What is being built.
        whole: The finished store, once its manifest is there.
        lock: Held while it grows, and by who wants several of its answers to agree.
    """

    def __init__(
        self,
        url: str,
        head: BuildHead,
        *,
        cache: PartCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know nothing yet; `grow` looks.

        Args:
            url: Local folder or URL of the store.
            head: What is being built there.
            cache: As `Store.open`.
            clock: Seconds.
        """
        self.url, self.head = url, head
        self.whole: Store | None = None
        self._cache, self._clock = cache, clock
        self._parts = OpenParts(url, tokenizer=head.tokenizer, dtype=head.dtype, cache=cache)
        self._entries: list[PartEntry] = []
        self._bases = [0]
        self._splits: tuple[_Columns, ...] = tuple(_Columns() for _ in SPLITS)
        self._chain = [hashlib.sha256()]  # of the first 0, 1, 2 ... parts
        self.lock = RLock()
        self._looked_at = -LOOK_S

    @classmethod
    def open(cls, url: str, cache: PartCache | None = None) -> "GrowingStore":
        """Open a store that is being built, or was finished a moment ago.

        Raises:
            DataError: Nothing is built there.
        """
        until = time.monotonic() + SILENCE_S
        while (head := read_head(url)) is None:
            if exists(join(url, MANIFEST)):
                store = cls(url, _head_of(Store.open(url)), cache=cache)
                store.grow()
                return store
            if time.monotonic() > until:
                raise DataError(
                    f"{url} is no store, and nothing is being built there. Begin with `longrow "
                    "train CONFIG --build CORPUS`, or build it first with `longrow build`."
                )
            time.sleep(LOOK_S)
        return cls(url, head, cache=cache)

    @property
    def vocab_size(self) -> int:
        return self.head.vocab_size

    @property
    def bos(self) -> int:
        return self.head.bos

    @property
    def eod(self) -> int:
        return self.head.eod

    @property
    def fingerprint(self) -> str:
        """That of the finished store; before, what is being built."""
        return self.whole.fingerprint if self.whole else f"{BUILDS}{self.head.plan}"

    @property
    def tokenizer_sha256(self) -> str:
        return self.head.tokenizer

    @property
    def num_parts(self) -> int:
        """Parts known so far."""
        return len(self._entries)

    @property
    def documents(self) -> int:
        """Documents known so far, in all splits."""
        return self._bases[-1]

    @property
    def tokens(self) -> int:
        """Tokens of these; EOD not counted."""
        return sum(entry.tokens for entry in self._entries)

    def tokenizer(self) -> Tokenizer:
        """As `Store.tokenizer`."""
        if self.whole is not None:
            return self.whole.tokenizer()
        return Tokenizer.load(join(self.url, BUILDING, TOKENIZER))

    def num_tokens(self, split: Split) -> Counts:
        """As `Store.num_tokens`, of the documents known so far."""
        if self.whole is not None:
            return self.whole.num_tokens(split)
        return self._splits[SPLITS.index(split)].num_tokens

    def doc_ids(self, split: Split) -> Counts:
        """As `Store.doc_ids`, of the documents known so far."""
        if self.whole is not None:
            return self.whole.doc_ids(split)
        return self._splits[SPLITS.index(split)].doc_ids

    def by_length(self, split: Split) -> Source | Mixed:
        """As `Store.by_length`, of the documents known so far."""
        if self.whole is not None:
            return self.whole.by_length(split)
        with self.lock:
            return Lengths(doc_id=self.doc_ids(split), num_tokens=self.num_tokens(split))

    def read(self, doc_id: int) -> Tokens:
        """As `Store.read`."""
        if self.whole is not None:
            return self.whole.read(doc_id)
        part, row = self._locate(int(doc_id))
        return part.tokens(row)

    def uid(self, doc_id: int) -> str:
        """As `Store.uid`."""
        if self.whole is not None:
            return self.whole.uid(doc_id)
        part, row = self._locate(doc_id)
        return part.value("uid", row)

    def origin(self, doc_id: int) -> tuple[str, int]:
        """As `Store.origin`."""
        if self.whole is not None:
            return self.whole.origin(doc_id)
        part, row = self._locate(doc_id)
        return part.value("source", row), part.value("record", row)

    def identity(self, num_parts: int) -> str:
        """The sha256 of what the first `num_parts` parts hold, in hex."""
        return self._chain[num_parts].hexdigest()

    def grow(self, *, now: bool = False) -> bool:
        """Look for more, a few times a second however often it is called; whether there is.

        Of very much a part is taken in LONGEST_S, the rest when it is called again.

        Args:
            now: However short ago the last look was.

        Raises:
            DataError: The finished store is not the one whose beginning was read, or what is said
                of a part is damaged.
        """
        with self.lock:
            began = self._clock()
            if self.whole is not None or (not now and began < self._looked_at + LOOK_S):
                return False
            self._looked_at = began
            if exists(join(self.url, MANIFEST)):
                self._finish(Store.open(self.url, self._cache))
                return True
            before = len(self._entries)
            while (part := read_part(self.url, len(self._entries))) is not None:
                self._add(part)
                if self._clock() > began + LONGEST_S:
                    self._looked_at = -LOOK_S
                    break
            return len(self._entries) > before

    def _locate(self, doc_id: int) -> tuple[Part, int]:
        index = bisect_right(self._bases, doc_id) - 1
        part = self._parts.open.get(index) or self._parts.part(index, self._entries[index])
        return part, doc_id - self._bases[index]

    def _add(self, part: Committed) -> None:
        """Know a part; it is opened, and hashed, when one of its documents is read."""
        entry, lengths, splits = part
        ids = np.arange(len(lengths), dtype=np.int64) + self._bases[-1]
        chain = self._chain[-1].copy()
        chain.update(line_of(entry))
        self._chain.append(chain)
        self._entries.append(entry)
        self._bases.append(self._bases[-1] + entry.documents)
        for number, columns in enumerate(self._splits):
            columns.add(ids[splits == number], lengths[splits == number])

    def _finish(self, store: Store) -> None:
        parts = store.manifest.parts
        if tuple(self._entries) != parts[: len(self._entries)]:
            raise DataError(
                f"{self.url} was finished as another store than the one that was read while it "
                f"was built: its first {len(self._entries):,} parts differ. Two builds wrote there "
                "at the same time: let one end, and resume from the newest checkpoint."
            )
        for entry in parts[len(self._entries) :]:
            chain = self._chain[-1].copy()
            chain.update(line_of(entry))
            self._chain.append(chain)
        self._entries = list(parts)
        self._bases = [0, *np.cumsum([part.documents for part in parts]).tolist()]
        self._splits = ()  # the store's index says it, where it lies
        store.take_over(self._parts)
        self.whole = store


class _Columns:
    """Numbers and lengths of the documents of a split; what was given out is never changed."""

    def __init__(self) -> None:
        self._room = np.empty((2, 1024), dtype=np.int64)
        self._count = 0
        self.doc_ids = self.num_tokens = np.zeros(0, dtype=np.int64)

    def add(self, doc_ids: Counts, num_tokens: Counts) -> None:
        """Append documents, in time that hangs on their number alone."""
        end = self._count + len(doc_ids)
        if end > self._room.shape[1]:
            room = np.empty((2, 2 * end), dtype=np.int64)
            room[:, : self._count] = self._room[:, : self._count]
            self._room = room
        self._room[:, self._count : end] = doc_ids, num_tokens
        self._count = end
        self.doc_ids, self.num_tokens = self._room[0, :end], self._room[1, :end]


def _head_of(store: Store) -> BuildHead:
    """The head of a store that is finished: nobody asks for its plan any more."""
    return BuildHead(
        plan="",
        tasks=len(store.manifest.parts),
        tokenizer=store.tokenizer_sha256,
        vocab_size=store.vocab_size,
        bos=store.bos,
        eod=store.eod,
        dtype=store.manifest.dtype,
    )


def open_present(url: str) -> Store | GrowingStore:
    """Open a store to look at it: one that is being built as far as it is at this moment.

    Raises:
        DataError: As `Store.open`.
    """
    if url.startswith(MIXTURE) or exists(join(url, MANIFEST)) or read_head(url) is None:
        return Store.open(url)
    store = GrowingStore.open(url)
    store.grow()
    return store.whole or store


def open_documents(
    url: str, *, growing: bool = False, cache: str = "", cache_bytes: int = 0
) -> Store | GrowingStore:
    """Open a store, one that is being built if `growing`.

    Args:
        url: Local folder or URL.
        growing: Take it as far as it is.
        cache: Folder for the parts of a remote store; empty reads them into memory.
        cache_bytes: What they may hold together.

    Raises:
        DataError, SettingsError: As `Store.open`.
    """
    kept = PartCache(cache, cache_bytes) if cache else None
    return GrowingStore.open(url, kept) if growing else Store.open(url, kept)
