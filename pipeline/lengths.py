"""How long the documents are: all that the rows know of a corpus, of one source or of several.

Nothing here is copied from a store's index but what is asked for, so a billion documents cost the
walk no more memory than a thousand (infra/SCALE.md).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
_BLOCK = 512  # documents between two counts of a split
_AT_ONCE = 1024  # blocks looked at
_NO_SPLIT = 255


class Source(Protocol):
    """The documents of one source, by place in store order and by number."""

    @property
    def count(self) -> int:
        """Documents."""
        ...

    @property
    def longest(self) -> int:
        """Text tokens of the longest document; all are looked at."""
        ...

    def at(self, place: Int64s, /) -> tuple[Int64s, Int64s]:
        """doc_id and num_tokens of the documents at places (N,), each in 0 .. count - 1."""
        ...

    def num_tokens_of(self, doc_id: Int64s, /) -> Int64s:
        """Text tokens of documents (N,); -1 for what is no document of the source."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lengths:
    """A source whose numbers lie in memory: held-out documents, and those of tests.

    Attributes:
        doc_id: (N,) rising.
        num_tokens: (N,) text tokens n of each; a document is n + 1 inputs.
    """

    doc_id: Int64s
    num_tokens: Int64s

    @property
    def count(self) -> int:
        return len(self.doc_id)

    @property
    def longest(self) -> int:
        return int(self.num_tokens.max(initial=0))

    def at(self, place: Int64s) -> tuple[Int64s, Int64s]:
        return self.doc_id[place], self.num_tokens[place]

    def num_tokens_of(self, doc_id: Int64s) -> Int64s:
        if not self.count:
            return np.full(len(doc_id), -1)
        place = np.minimum(np.searchsorted(self.doc_id, doc_id), self.count - 1)
        return np.where(self.doc_id[place] == doc_id, self.num_tokens[place], -1)


class SplitLengths:
    """A split of a store, read where the index is mapped; a count each 512 documents is kept."""

    def __init__(
        self, num_tokens: Int64s, splits: npt.NDArray[np.uint8], split: int, *, base: int = 0
    ) -> None:
        """Count the split's documents, in one pass over the index.

        Args:
            num_tokens: (documents of the store,) as mapped.
            splits: (documents of the store,) as mapped.
            split: The one wanted.
            base: doc_id of the store's first document.
        """
        self._num_tokens, self._splits, self._split = num_tokens, splits, split
        self._base = base
        whole = len(splits) // _BLOCK * _BLOCK
        self._blocks = splits[:whole].reshape(-1, _BLOCK)  # as mapped
        self._tail = np.full(_BLOCK, _NO_SPLIT, dtype=np.uint8)
        self._tail[: len(splits) - whole] = splits[whole:]
        # (blocks + 1,) documents of the split before each block
        self._before = np.zeros(-(-len(splits) // _BLOCK) + 1, dtype=np.int64)
        for low in range(0, len(splits), _AT_ONCE * _BLOCK):
            found = splits[low : low + _AT_ONCE * _BLOCK] == split
            found = np.pad(found, (0, -len(found) % _BLOCK)).reshape(-1, _BLOCK)
            block = low // _BLOCK
            self._before[block + 1 : block + 1 + len(found)] = found.sum(axis=1)
        np.cumsum(self._before, out=self._before)

    @property
    def count(self) -> int:
        return int(self._before[-1])

    @property
    def longest(self) -> int:
        found = 0
        for low in range(0, len(self._splits), _AT_ONCE * _BLOCK):
            here = slice(low, low + _AT_ONCE * _BLOCK)
            ours = self._splits[here] == self._split
            found = max(found, int(self._num_tokens[here].max(where=ours, initial=0)))
        return found

    def at(self, place: Int64s) -> tuple[Int64s, Int64s]:
        if self.count == len(self._splits):
            row = place
        else:
            parts = np.array_split(place, max(1, -(-len(place) // _AT_ONCE)))
            row = np.concatenate([self._select(part) for part in parts])
        return row + self._base, self._num_tokens[row]

    def num_tokens_of(self, doc_id: Int64s) -> Int64s:
        row = doc_id - self._base
        inside = (row >= 0) & (row < len(self._splits))
        if not inside.any():
            return np.full(len(doc_id), -1)
        row = np.where(inside, row, 0)
        return np.where(inside & (self._splits[row] == self._split), self._num_tokens[row], -1)

    def _select(self, place: Int64s) -> Int64s:
        """(N,) rows of the index that hold the split's documents at `place`."""
        block = np.searchsorted(self._before, place, side="right") - 1
        splits = np.empty((len(place), _BLOCK), dtype=np.uint8)
        whole = block < len(self._blocks)
        splits[whole], splits[~whole] = self._blocks[block[whole]], self._tail
        passed = np.cumsum(splits == self._split, axis=1, dtype=np.int16)  # (N, 512)
        within = place - self._before[block]
        return block * _BLOCK + np.argmax(passed > within[:, None], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixed:
    """Several sources, dealt so that each has its share of the tokens.

    Attributes:
        sources: Their documents; no doc_id stands in two of them.
        weights: A whole number each, above 0.
    """

    sources: tuple[Source, ...]
    weights: tuple[int, ...]

    def num_tokens_of(self, doc_id: Int64s) -> Int64s:
        """As of one source."""
        found = np.full(len(doc_id), -1)
        for source in self.sources:
            found = np.maximum(found, source.num_tokens_of(doc_id))
        return found

    def source_of(self, doc_id: Int64s) -> Int64s:
        """(N,) number of the source of each document, 0 for what is none."""
        found = np.zeros(len(doc_id), dtype=np.int64)
        for number, source in enumerate(self.sources):
            found[source.num_tokens_of(doc_id) >= 0] = number
        return found

    def neediest(self, tokens: list[int]) -> int:
        """The source that the next document comes from, by the tokens dealt of each.

        It is the one that lacks most tokens of its share of all that were dealt, the lowest of
        equals. Whole numbers throughout, as large as they come: nothing is rounded.
        """
        if len(tokens) == 1:
            return 0
        dealt, weight = sum(tokens), sum(self.weights)
        lack = [w * dealt - weight * t for w, t in zip(self.weights, tokens, strict=True)]
        return lack.index(max(lack))


def mixed(documents: Source | Mixed) -> Mixed:
    """One source as a mixture of one."""
    return documents if isinstance(documents, Mixed) else Mixed(sources=(documents,), weights=(1,))
