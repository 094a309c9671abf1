"""Several stores read as one, each with its share of the tokens.

A mixture is a store to all that reads it: `Store.open` opens it by a name that holds all it is,
`mixture:[["/data/books", "3"], ["/data/web", "1"]]`. Its documents are numbered through: those of
each store follow those of the stores before it.
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from itertools import accumulate, pairwise
from math import gcd, lcm
from typing import Any

import numpy as np

from pipeline.cache import PartCache
from pipeline.errors import DataError
from pipeline.lengths import Int64s, Mixed
from pipeline.manifest import Manifest, canonical
from pipeline.settings import SettingsError
from pipeline.store import MIXTURE, Split, Store
from pipeline.tokenizer import Tokenizer

FORMAT = "longrow-mixture-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """A store of a mixture.

    Attributes:
        store: Local folder or URL.
        weight: Its share of the training tokens, in proportion to those of the others.
    """

    store: str
    weight: float

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by the config's checker

    def __post_init__(self) -> None:
        if not self.store or self.store.startswith(MIXTURE):
            raise SettingsError("store must be the folder or URL of one store.")
        if not 1e-6 <= self.weight <= 1e6:
            raise SettingsError(f"weight = {self.weight} must lie between 1e-6 and 1e6.")


def name_of(stores: Sequence[Weighted]) -> str:
    """The name by which `Store.open` opens a mixture."""
    return MIXTURE + json.dumps([[one.store, str(one.weight)] for one in stores])


def whole_weights(weights: Sequence[str]) -> tuple[int, ...]:
    """Weights, exact as they are written in decimals, as the smallest whole numbers."""
    exact = [Fraction(weight) for weight in weights]
    common = lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * common) for weight in exact]
    return tuple(weight // gcd(*whole) for weight in whole)


def open_mixture(name: str, cache: PartCache | None = None) -> "Mixture":
    """Open a mixture by its name.

    Raises:
        DataError: A store cannot be read, two hold the same documents, or they are not of one
            tokenizer and one held_out.
    """
    try:
        told = json.loads(name.removeprefix(MIXTURE))
        urls, weights = [str(url) for url, _ in told], whole_weights([w for _, w in told])
    except (ValueError, TypeError) as error:
        raise DataError(
            f'{name} names no mixture: wanted is {MIXTURE}[["STORE", "WEIGHT"], ...].'
        ) from error
    return Mixture(name, [Store.open(url, cache) for url in urls], weights)


class Mixture(Store):
    """Several stores behind the face of one.

    Attributes:
        stores: Each of them.
        weights: Their shares, as the smallest whole numbers.
    """

    def __init__(self, name: str, stores: Sequence[Store], weights: Sequence[int]) -> None:
        # Not as a store begins: a mixture has no files of its own.
        _check_alike(stores)
        self.url, self.stores, self.weights = name, tuple(stores), tuple(weights)
        self._bases = [0, *accumulate(store.manifest.documents for store in stores)]
        self.manifest = _joined([store.manifest for store in stores], self.weights)

    def tokenizer(self) -> Tokenizer:
        return self.stores[0].tokenizer()

    def num_tokens(self, split: Split) -> Int64s:
        return np.concatenate([store.num_tokens(split) for store in self.stores])

    def doc_ids(self, split: Split) -> Int64s:
        return np.concatenate(
            [b + s.doc_ids(split) for b, s in zip(self._bases, self.stores, strict=False)]
        )

    def by_length(self, split: Split) -> Mixed:
        sources = [
            store.lengths_from(split, base=base)
            for base, store in zip(self._bases, self.stores, strict=False)
        ]
        return Mixed(sources=tuple(sources), weights=self.weights)

    def read(self, doc_id: int) -> Any:
        store, row = self._of(doc_id)
        return store.read(row)

    def sizes(self, doc_ids: Sequence[int] | Int64s) -> tuple[Int64s, Int64s, Int64s]:
        ids = np.asarray(doc_ids, dtype=np.int64)
        self._check_range(ids)
        found = np.zeros((3, len(ids)), dtype=np.int64)
        for store, (low, high) in zip(self.stores, pairwise(self._bases), strict=True):
            here = (ids >= low) & (ids < high)
            found[:, here] = store.sizes(ids[here] - low)
        return found[0], found[1], found[2]

    def uid(self, doc_id: int) -> str:
        store, row = self._of(doc_id)
        return store.uid(row)

    def origin(self, doc_id: int) -> tuple[str, int]:
        store, row = self._of(doc_id)
        return store.origin(row)

    def number_of(self, doc_id: int) -> int:
        """Which of the stores holds a document."""
        return bisect_right(self._bases, int(doc_id)) - 1

    def verify(self) -> list[str]:
        return [fault for store in self.stores for fault in store.verify()]

    def _of(self, doc_id: int) -> tuple[Store, int]:
        """The store that holds a document, and its number there."""
        self._check_range(np.array([doc_id]))
        number = self.number_of(doc_id)
        return self.stores[number], int(doc_id) - self._bases[number]


def _check_alike(stores: Sequence[Store]) -> None:
    first = stores[0]
    seen: dict[tuple[int, int, int], list[Store]] = {}
    for store in stores:
        ours, theirs = (
            (one.manifest.tokenizer, one.vocab_size, one.bos, one.eod) for one in (first, store)
        )
        if ours != theirs:
            raise DataError(
                f"{first.url} is of tokenizer {ours[0][:12]} with {ours[1]:,} ids, {store.url} of "
                f"{theirs[0][:12]} with {theirs[1]:,}: one model reads one tokenizer. Build them "
                "with the same `--tokenizer FILE`."
            )
        if first.manifest.held_out != store.manifest.held_out:
            raise DataError(
                f"{first.url} was built with --held-out {first.manifest.held_out}, {store.url} "
                f"with --held-out {store.manifest.held_out}: a text that stands in both would be "
                "trained on and scored as held out. Build them with the same `--held-out`."
            )
        manifest = store.manifest
        alike = seen.setdefault((manifest.documents, manifest.tokens, manifest.bytes), [])
        for other in alike:
            if _same_documents(store, other):
                raise DataError(
                    f"{store.url} holds the same documents as {other.url}: name a store once, with "
                    "the sum of its weights."
                )
        alike.append(store)


def _same_documents(store: Store, other: Store) -> bool:
    """Whether two stores of equal counts are of one corpus: by fingerprint, or by their ends.

    A fingerprint tells tasks of another size, or a drop list, from none; the documents do not.
    """
    return store.fingerprint == other.fingerprint or all(
        np.array_equal(store.read(doc_id), other.read(doc_id))
        for doc_id in (0, store.manifest.documents - 1)
    )


def _joined(manifests: Sequence[Manifest], weights: tuple[int, ...]) -> Manifest:
    """What the stores hold together; its fingerprint is that of docs/formats.md, 4.5."""
    told = {
        "format": FORMAT,
        "sources": [
            {"fingerprint": manifest.fingerprint, "weight": weight}
            for manifest, weight in zip(manifests, weights, strict=True)
        ],
    }
    numbers = ("documents", "tokens", "bytes", "empty", "duplicate_ids", "dropped")
    sums: dict[str, Any] = {
        name: sum(getattr(manifest, name) for manifest in manifests) for name in numbers
    }
    rejected: Counter[str] = Counter()
    for manifest in manifests:
        rejected.update(manifest.rejected)
    return replace(
        manifests[0],
        format=FORMAT,
        **sums,
        rejected=dict(rejected),
        first_duplicates={},
        parts=tuple(part for manifest in manifests for part in manifest.parts),
        fingerprint=sha256(canonical(told)).hexdigest(),
    )
