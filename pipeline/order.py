"""The order of an epoch: which document stands at an index, from a hash of docs/formats.md.

No list of documents is shuffled: a keyed bijection on 0 .. count - 1 answers for one index at a
time, in constant memory, the same on every machine and in every version of every library.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import Literal

import numpy as np
import numpy.typing as npt

from pipeline.lengths import Int64s, Source

Shuffle = Literal["global", "block", "none"]

ROUNDS = 8
GROUP = 16  # blocks whose documents are mixed with each other
_CHUNKS = (32, 8192)  # indices worked out at a time: at first, and at most
_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def documents_from(
    source: Source, *, epoch: int, index: int, seed: int, shuffle: Shuffle, block: int = 1024
) -> Iterator[tuple[int, int, int]]:
    """The documents from an index of an epoch on, epoch after epoch without end.

    Yields:
        doc_id, num_tokens, epoch.
    """
    count, (size, largest) = source.count, _CHUNKS
    while True:
        while index < count:
            indices = np.arange(index, min(index + size, count))
            chunk = documents_at(
                indices, count=count, epoch=epoch, seed=seed, shuffle=shuffle, block=block
            )
            doc_id, num_tokens = source.at(chunk)
            yield from zip(doc_id.tolist(), num_tokens.tolist(), repeat(epoch))
            index, size = index + len(chunk), min(2 * size, largest)
        epoch, index = epoch + 1, 0


def document_at(
    index: int, *, count: int, epoch: int, seed: int, shuffle: Shuffle, block: int = 1024
) -> int:
    """The document, 0 .. count - 1 in store order, that stands at `index` of an epoch's order."""
    found = documents_at(
        np.array([index]), count=count, epoch=epoch, seed=seed, shuffle=shuffle, block=block
    )
    return int(found[0])


def documents_at(
    index: Int64s, *, count: int, epoch: int, seed: int, shuffle: Shuffle, block: int = 1024
) -> Int64s:
    """`document_at` of many indices at once.

    Args:
        index: (N,), each in 0 .. count - 1.
        count: Documents of the source, at least 1.
        epoch: Passes made before this one.
        seed: 0 .. 2^64 - 1.
        shuffle: `global` mixes all documents, `block` those of few blocks at a time, `none` is
            store order.
        block: Documents of a block; of `block` alone.

    Returns:
        (N,) documents, int64.
    """
    if shuffle == "none":
        return index
    of_epoch = _split_mix(_split_mix(seed, 0), epoch)
    if shuffle == "global":
        return _bijection(index, count, _keys(of_epoch))
    return _in_blocks(index, count, of_epoch, block)


def _in_blocks(index: Int64s, count: int, of_epoch: int, block: int) -> Int64s:
    """The order that touches few blocks of documents at a time (docs/formats.md, 1.2).

    The documents, counted on from one that the epoch draws, are cut into blocks. The blocks come
    in an order of their own, the short one at the end last; and GROUP blocks at a time have their
    documents mixed. So the ends of the blocks, too, are others in each epoch.
    """
    first = _split_mix(of_epoch, ROUNDS) % count
    blocks = count // block  # whole ones
    of_blocks = _keys(_split_mix(of_epoch, ROUNDS + 1))
    of_groups = _split_mix(of_epoch, ROUNDS + 2)
    group, inside = np.divmod(index, GROUP * block)
    place = np.empty_like(index)
    for number in np.unique(group).tolist():
        here = group == number
        size = min(GROUP * block, count - number * GROUP * block)
        keys = _keys(_split_mix(of_groups, number))
        place[here] = number * GROUP * block + _bijection(inside[here], size, keys)
    slot, column = np.divmod(place, block)
    whole = slot < blocks
    if blocks:
        slot[whole] = _bijection(slot[whole], blocks, of_blocks)
    return (first + slot * block + column) % count


def _bijection(index: Int64s, count: int, keys: list[int]) -> Int64s:
    """A permutation of 0 .. count - 1, asked at some places.

    A Feistel network on the smallest power of two that holds `count`; a value that falls outside
    is sent through again until it falls inside (cycle walking: under two passes on average).

    Source: the network is Luby and Rackoff 1988, cycle walking Black and Rogaway 2002, the hash
    the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    """
    bits = (count - 1).bit_length()
    found = _network(index.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(found >= count)
    while outside.size:
        again = _network(found[outside], bits, keys)
        found[outside] = again
        outside = outside[again >= count]
    return found.astype(np.int64)


def round_keys(*, epoch: int, seed: int) -> list[int]:
    """The keys of the rounds: SplitMix64 seeded by it, and that by the seed and the epoch."""
    return _keys(_split_mix(_split_mix(seed, 0), epoch))


def seed_of_source(seed: int, number: int) -> int:
    """The seed of source `number` of a mixture: that of the rows for source 0."""
    return _split_mix(seed, number) if number else seed


def _keys(seed: int) -> list[int]:
    return [_split_mix(seed, number) for number in range(ROUNDS)]


def _split_mix(seed: int, number: int) -> int:
    """Output `number`, from 0, of a SplitMix64 generator started at `seed`."""
    z = (seed + (number + 1) * _GAMMA) & _WORD
    z = ((z ^ (z >> 30)) * _FIRST) & _WORD
    z = ((z ^ (z >> 27)) * _SECOND) & _WORD
    return z ^ (z >> 31)


def _network(value: npt.NDArray[np.uint64], bits: int, keys: list[int]) -> npt.NDArray[np.uint64]:
    """One pass: even rounds change the high half by the low one, odd rounds the other way round."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = value & low_mask, value >> low_bits
    for number, key in enumerate(keys):
        if number % 2 == 0:
            high = high ^ (_mix(low ^ np.uint64(key)) & high_mask)
        else:
            low = low ^ (_mix(high ^ np.uint64(key)) & low_mask)
    return (high << low_bits) | low


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser; arrays of uint64 wrap, as it wants."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))
