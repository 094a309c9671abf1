"""The parts of a store that a process has open: mapped, held against the manifest, bounded."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from pipeline.cache import PartCache, wrong_bytes
from pipeline.errors import DataError, missing_file
from pipeline.files import join, local_path, read_bytes
from pipeline.manifest import PartEntry, part_faults
from pipeline.part import Part

OPEN_PARTS = 16_384  # mapped at a time; Linux gives a process 65,530 mappings
OPEN_REMOTE_BYTES = 2_000_000_000  # of remote parts that no cache keeps: they lie in memory


class OpenParts:
    """Parts by their place in the store.

    A part is hashed when a process first opens it: about 0.6 s a gigabyte. A remote one comes
    through the cache, or into memory where there is none; what was opened longest ago is let go
    when the rest grows too large. May be used by several threads: two that want the same part at
    the same time may both open it, and one of these is kept.

    Attributes:
        open: Those that are open, oldest first.
    """

    def __init__(
        self, store: str, *, tokenizer: str, dtype: str, cache: PartCache | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            store: Where the store lies.
            tokenizer: sha256 of the tokenizer that encoded it.
            dtype: Of its ids.
            cache: Keeps remote parts on this machine.
        """
        self._store, self._tokenizer, self._dtype, self._cache = store, tokenizer, dtype, cache
        self._remote = local_path(store) is None
        self._hashed: set[str] = set()  # keys of parts whose bytes were right
        self._bytes = 0  # of open remote parts
        self._sizes: dict[int, int] = {}
        self._lock = Lock()
        self.open: OrderedDict[int, Part] = OrderedDict()

    def part(self, index: int, entry: PartEntry) -> Part:
        """The part at `index`, as the manifest describes it.

        Raises:
            DataError: It is another, or damaged.
        """
        found = self.open.get(index)
        if found is not None:
            return found
        part = self._opened(join(self._store, entry.name), entry)
        with self._lock:
            return self._keep(index, entry, part)

    def mark_hashed(self, entries: Iterable[PartEntry]) -> None:
        """Take it that the bytes of these parts are right: somebody has just read them all."""
        self._hashed.update(entry.key for entry in entries)

    def _keep(self, index: int, entry: PartEntry, part: Part) -> Part:
        found = self.open.get(index)
        if found is not None:  # another thread was faster
            return found
        if self._remote:
            self._sizes[index] = entry.size_bytes
            self._bytes += entry.size_bytes
        self.open[index] = part
        while len(self.open) > 1 and (len(self.open) > OPEN_PARTS or self._bytes > self._room()):
            oldest, _ = self.open.popitem(last=False)  # views given out keep their mapping alive
            self._bytes -= self._sizes.pop(oldest, 0)
        return part

    def _room(self) -> int:
        """Bytes of remote parts that may be open: with a cache, so many as are on disk anyway."""
        return self._cache.limit_bytes if self._cache else OPEN_REMOTE_BYTES

    def _opened(self, url: str, entry: PartEntry) -> Part:
        if not self._remote:
            part = Part(url)
        elif self._cache:
            with self._cache.fetch(url, entry) as file:
                part = Part(url, file)
        else:
            part = Part(url, _fetched(url, entry))
        head = part.head
        if (head.key, part.num_documents) != (entry.key, entry.documents):
            raise DataError(
                f"{url} is a foreign part: it holds task {head.key} with {part.num_documents:,} "
                f"documents, the manifest says {entry.key} with {entry.documents:,}. Remove it and "
                "run `longrow build` again."
            )
        if (head.tokenizer, head.dtype) != (self._tokenizer, self._dtype):
            raise DataError(
                f"{url} was encoded with another tokenizer ({head.tokenizer[:12]}) than the "
                f"store's ({self._tokenizer[:12]}). Remove it and run `longrow build` again."
            )
        if not self._remote and entry.key not in self._hashed:
            for fault in part_faults(self._store, entry):
                raise DataError(fault)
            self._hashed.add(entry.key)
        return part


def _fetched(url: str, entry: PartEntry) -> bytes:
    try:
        data = read_bytes(url)
    except FileNotFoundError:
        raise missing_file(url) from None
    digest = hashlib.sha256(data).hexdigest()
    if (len(data), digest) != (entry.size_bytes, entry.sha256):
        raise wrong_bytes(url, len(data), digest, entry)
    return data
