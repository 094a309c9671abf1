"""However many workers share an evaluation, every row and every block is read by one of them."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.transformer_xl import TransformerXL
from pipeline.store import Store
from tests.models import small_model
from trainer.context import Measure, choose_blocks
from trainer.evaluation import Wanted
from trainer.scorer import Scorer, share_of
from trainer.sums import no_sums

Opened = tuple[TransformerXL, Store]


@pytest.fixture(scope="module")
def opened(tiny_store: Path) -> Opened:
    store = Store.open(str(tiny_store))
    model = small_model(vocab_size=store.vocab_size).requires_grad_(requires_grad=False)
    return model, store


@given(count=st.integers(0, 50), workers=st.integers(1, 20))
def test_shares_follow_one_another_and_differ_by_one_at_most(count: int, workers: int) -> None:
    shares = [share_of(count, (worker, workers)) for worker in range(workers)]
    assert [n for low, high in shares for n in range(low, high)] == list(range(count))
    sizes = [high - low for low, high in shares]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=6)
@given(
    workers=st.integers(2, 5),
    more=st.integers(0, 4),
    segment=st.integers(8, 60),
    memory=st.integers(0, 30),
)
def test_the_sums_of_all_shares_are_those_of_all_rows(
    opened: Opened, workers: int, more: int, segment: int, memory: int
) -> None:
    wanted = Wanted(rows=workers + more, segment=segment, memory=memory)
    found, told = no_sums(), 0
    for worker in range(workers):
        scorer = Scorer(lambda: opened)
        part = scorer.sums(wanted, share=(worker, workers))
        told += scorer.done()
        found.nats.add_(part.nats)
        found.targets.add_(part.targets)
    whole = Scorer(lambda: opened).sums(wanted)
    assert torch.equal(found.targets, whole.targets)
    torch.testing.assert_close(found.nats, whole.nats, rtol=1e-12, atol=1e-9)
    assert told == int(whole.targets.sum())


@settings(max_examples=6)
@given(workers=st.integers(2, 6), most=st.integers(1, 12), memory=st.integers(0, 20))
def test_the_losses_of_all_shares_are_those_of_all_blocks(
    opened: Opened, workers: int, most: int, memory: int
) -> None:
    blocks = choose_blocks(opened[1], least=20, size=3, most=most)
    measure = Measure(contexts=(0, 6, 20), size=3, segment=5, memory=memory, rows=4)
    parts = [
        Scorer(lambda: opened).losses(blocks, measure, share=(worker, workers))
        for worker in range(workers)
    ]
    whole = Scorer(lambda: opened).losses(blocks, measure)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-12, atol=1e-12)
