"""The order of an epoch is a permutation, another one each epoch, and never changes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lengths import Lengths
from pipeline.order import Shuffle, document_at, documents_at, documents_from

counts = st.one_of(st.integers(1, 70), st.integers(1, 3000))
seeds = st.integers(0, 2**63 - 1)
WORD = 2**64 - 1


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
    return z ^ (z >> 31)


def out(start: int, i: int) -> int:
    return mix((start + (i + 1) * 0x9E3779B97F4A7C15) & WORD)


def written_down(index: int, count: int, of_keys: int) -> int:
    """docs/formats.md, word for word: the bijection keyed by out(of_keys, i)."""
    bits = 0
    while 2**bits < count:
        bits += 1
    below, above = 2 ** (bits // 2), 2 ** (bits - bits // 2)
    x = index
    while True:
        high, low = divmod(x, below)
        for i in range(8):
            key = out(of_keys, i)
            if i % 2 == 0:
                high ^= mix(key ^ low) % above
            else:
                low ^= mix(key ^ high) % below
        x = high * below + low
        if x < count:
            return x


def written_down_in_blocks(index: int, count: int, epoch: int, seed: int, block: int) -> int:
    """docs/formats.md, word for word: the order of `shuffle = "block"`."""
    E = out(out(seed, 0), epoch)
    blocks, group = count // block, 16 * block
    g, x = divmod(index, group)
    y = g * group + written_down(x, min(group, count - g * group), out(out(E, 10), g))
    slot, column = divmod(y, block)
    if slot < blocks:
        slot = written_down(slot, blocks, out(E, 9))
    return (out(E, 8) % count + slot * block + column) % count


@given(
    count=counts,
    seed=seeds,
    epoch=st.integers(0, 2**40),
    shuffle=st.sampled_from(["global", "block"]),
    block=st.integers(1, 70),
)
def test_every_document_stands_at_exactly_one_index(
    count: int, seed: int, epoch: int, shuffle: Shuffle, block: int
) -> None:
    order = documents_at(
        np.arange(count), count=count, epoch=epoch, seed=seed, shuffle=shuffle, block=block
    )
    assert sorted(order.tolist()) == list(range(count))


@given(
    count=st.integers(1, 2**40),
    seed=seeds,
    epoch=st.integers(0, 2**40),
    block=st.integers(1, 2**20),
    data=st.data(),
)
def test_the_order_is_the_one_written_down(
    count: int, seed: int, epoch: int, block: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, count - 1))
    found = document_at(index, count=count, epoch=epoch, seed=seed, shuffle="global")
    assert found == written_down(index, count, out(out(seed, 0), epoch))
    found = document_at(index, count=count, epoch=epoch, seed=seed, shuffle="block", block=block)
    assert found == written_down_in_blocks(index, count, epoch, seed, block)


@given(
    count=st.integers(200, 3000),
    seed=seeds,
    epoch=st.integers(0, 1000),
    block=st.integers(1, 40),
    data=st.data(),
)
def test_a_block_shuffle_touches_few_blocks_at_a_time(
    count: int, seed: int, epoch: int, block: int, data: st.DataObject
) -> None:
    group = data.draw(st.integers(0, (count - 1) // (16 * block)))
    index = np.arange(group * 16 * block, min((group + 1) * 16 * block, count))
    found = documents_at(index, count=count, epoch=epoch, seed=seed, shuffle="block", block=block)
    # 16 runs of documents, and one more where the last of them goes over the end of the store.
    assert np.count_nonzero(np.diff(np.sort(found)) > 1) + 1 <= 17


@given(count=st.integers(20, 3000), seed=seeds, epoch=st.integers(0, 1000))
def test_epochs_and_seeds_have_orders_of_their_own(count: int, seed: int, epoch: int) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        index = np.arange(count)
        return documents_at(index, count=count, epoch=epoch, seed=seed, shuffle="global").tolist()

    ours = order(seed, epoch)
    assert ours != order(seed, epoch + 1)
    assert ours != order(seed ^ 1, epoch)
    assert ours != list(range(count))


@given(
    count=counts,
    seed=seeds,
    epoch=st.integers(0, 9),
    shuffle=st.sampled_from(["global", "block", "none"]),
    data=st.data(),
)
def test_documents_come_from_any_index_as_from_the_first(
    count: int, seed: int, epoch: int, shuffle: Shuffle, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, count - 1))
    lengths = Lengths(doc_id=np.arange(count) * 3, num_tokens=np.arange(count) + 7)
    come = documents_from(lengths, epoch=epoch, index=index, seed=seed, shuffle=shuffle, block=3)
    for _ in range(min(2 * count, 200)):
        place = document_at(index, count=count, epoch=epoch, seed=seed, shuffle=shuffle, block=3)
        assert next(come) == (3 * place, place + 7, epoch)
        epoch, index = (epoch, index + 1) if index + 1 < count else (epoch + 1, 0)


def test_store_order_is_kept_on_request() -> None:
    order = documents_at(np.arange(9), count=9, epoch=3, seed=5, shuffle="none")
    assert order.tolist() == list(range(9))


def test_documents_come_to_every_place_equally_often() -> None:
    """Chi-square over the seeds, for counts small enough to be a hard case for a cipher."""
    for count in (2, 3, 5, 8, 11):
        seen = np.zeros((count, count))
        for seed in range(1000):
            order = documents_at(
                np.arange(count), count=count, epoch=0, seed=seed, shuffle="global"
            )
            seen[np.arange(count), order] += 1
        expected = 1000 / count
        chi_square = ((seen - expected) ** 2 / expected).sum()
        freedom = (count - 1) ** 2
        assert chi_square < freedom + 5 * np.sqrt(2 * freedom) + 5
