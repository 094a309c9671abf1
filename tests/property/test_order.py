"""The order of an epoch is a permutation, another one each epoch, and never changes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lengths import Lengths
from pipeline.order import document_at, documents_at, documents_from

counts = st.one_of(st.integers(1, 70), st.integers(1, 3000))
seeds = st.integers(0, 2**63 - 1)
WORD = 2**64 - 1


def written_down(index: int, count: int, epoch: int, seed: int) -> int:
    """docs/formats.md, word for word."""

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
        return z ^ (z >> 31)

    def out(start: int, i: int) -> int:
        return mix((start + (i + 1) * 0x9E3779B97F4A7C15) & WORD)

    bits = 0
    while 2**bits < count:
        bits += 1
    below, above = 2 ** (bits // 2), 2 ** (bits - bits // 2)
    x = index
    while True:
        high, low = divmod(x, below)
        for i in range(8):
            key = out(out(out(seed, 0), epoch), i)
            if i % 2 == 0:
                high ^= mix(key ^ low) % above
            else:
                low ^= mix(key ^ high) % below
        x = high * below + low
        if x < count:
            return x


@given(count=counts, seed=seeds, epoch=st.integers(0, 2**40))
def test_every_document_stands_at_exactly_one_index(count: int, seed: int, epoch: int) -> None:
    order = documents_at(np.arange(count), count=count, epoch=epoch, seed=seed, shuffle="global")
    assert sorted(order.tolist()) == list(range(count))


@given(count=st.integers(1, 2**40), seed=seeds, epoch=st.integers(0, 2**40), data=st.data())
def test_the_order_is_the_one_written_down(
    count: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, count - 1))
    found = document_at(index, count=count, epoch=epoch, seed=seed, shuffle="global")
    assert found == written_down(index, count, epoch, seed)


@given(count=st.integers(20, 3000), seed=seeds, epoch=st.integers(0, 1000))
def test_epochs_and_seeds_have_orders_of_their_own(count: int, seed: int, epoch: int) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        index = np.arange(count)
        return documents_at(index, count=count, epoch=epoch, seed=seed, shuffle="global").tolist()

    ours = order(seed, epoch)
    assert ours != order(seed, epoch + 1)
    assert ours != order(seed ^ 1, epoch)
    assert ours != list(range(count))


@given(count=counts, seed=seeds, epoch=st.integers(0, 9), data=st.data())
def test_documents_come_from_any_index_as_from_the_first(
    count: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, count - 1))
    lengths = Lengths(doc_id=np.arange(count) * 3, num_tokens=np.arange(count) + 7)
    come = documents_from(lengths, epoch=epoch, index=index, seed=seed, shuffle="global")
    for _ in range(min(2 * count, 200)):
        place = document_at(index, count=count, epoch=epoch, seed=seed, shuffle="global")
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
