"""An evaluation scores every target once, by the model's own numbers, and changes nothing."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import ModelConfig
from model.memory import empty_memory
from model.transformer_xl import TransformerXL
from pipeline.store import Store
from trainer import evaluation
from trainer.evaluation import Scores, evaluate, reader
from trainer.group import Group
from trainer.sums import NUM_BUCKETS, bucket_of_offset

CPU = torch.device("cpu")


def score(model: TransformerXL, store: Store, *, rows: int, segment: int, memory: int) -> Scores:
    found = evaluate(
        model,
        store,
        Group(device=CPU),
        step=3,
        rows=rows,
        segment=segment,
        memory=memory,
        should_stop=lambda: False,
    )
    assert found is not None
    return found


@pytest.fixture(scope="module")
def store(tiny_store: Path) -> Store:
    return Store.open(str(tiny_store))


@pytest.fixture(scope="module")
def model(store: Store) -> TransformerXL:
    config = ModelConfig(
        vocab_size=store.vocab_size,
        layers=2,
        width=16,
        heads=2,
        head_width=8,
        inner_width=16,
        init_std=0.3,
    )
    return TransformerXL(config, seed=1)


@pytest.fixture(scope="module")
def defined(model: TransformerXL, store: Store) -> tuple[float, int]:
    """The definition: each document read in one segment, alone, from its first token."""
    nats, targets = 0.0, 0
    for doc_id in store.doc_ids("validation").tolist():
        ids = store.read(doc_id).astype("int64")
        tokens = torch.tensor([[store.bos, *ids[:-1]]])
        offset = torch.arange(len(ids))[None]
        wanted = torch.from_numpy(ids)[None]
        with torch.no_grad():
            hidden, _ = model(tokens, offset, empty_memory(model.config, 1, length=0))
            nats += float(model.nll(hidden, wanted).double().sum())
        targets += len(ids)
    return nats, targets


@settings(max_examples=10)
@given(rows=st.integers(1, 20), segment=st.integers(48, 200))
def test_with_memory_enough_it_is_the_loss_of_whole_documents(
    model: TransformerXL, store: Store, defined: tuple[float, int], rows: int, segment: int
) -> None:
    nats, targets = defined
    longest = int(store.num_tokens("validation").max()) + 1
    found = score(model, store, rows=rows, segment=segment, memory=longest)
    assert found.targets == targets == sum(found.targets_by_offset)
    assert found.nats == pytest.approx(nats, rel=1e-5)
    assert sum(found.nats_by_offset) == pytest.approx(found.nats)
    num_bytes, _, _ = store.sizes(store.doc_ids("validation"))
    assert found.num_bytes == num_bytes.sum()
    assert Scores.from_json(found.to_json()) == found


@settings(max_examples=10)
@given(
    rows=st.integers(1, 9),
    segment=st.integers(1, 40),
    memory=st.integers(0, 60),
    clamp=st.sampled_from([0, 7]),
    same_length=st.booleans(),
)
def test_kept_keys_and_values_score_as_kept_hidden_states_do(
    model: TransformerXL,
    store: Store,
    rows: int,
    segment: int,
    memory: int,
    clamp: int,
    same_length: bool,
) -> None:
    was = model.config
    model.config = replace(was, clamp_len=clamp, same_length=same_length and memory > 0)
    try:
        found = score(model, store, rows=rows, segment=segment, memory=memory)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluation, "reader", partial(reader, by_states=True))
            wanted = score(model, store, rows=rows, segment=segment, memory=memory)
    finally:
        model.config = was
    assert found.targets_by_offset == wanted.targets_by_offset
    assert found.nats_by_offset == pytest.approx(wanted.nats_by_offset, rel=1e-5)
    assert found.clamp == clamp


def test_it_leaves_the_model_as_it_was(model: TransformerXL, store: Store) -> None:
    model.train()
    before = [parameter.clone() for parameter in model.parameters()]
    score(model, store, rows=2, segment=32, memory=16)
    assert model.training
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)
        assert new.grad is None


def test_a_stop_ends_it(model: TransformerXL, store: Store) -> None:
    asked: list[int] = []

    def third_time() -> bool:
        asked.append(1)
        return len(asked) == 3

    found = evaluate(
        model,
        store,
        Group(device=CPU),
        step=0,
        rows=2,
        segment=8,
        memory=8,
        should_stop=third_time,
    )
    assert found is None
    assert len(asked) == 3


@given(offset=st.integers(0, 2**38))
def test_a_bucket_holds_the_offsets_it_says(offset: int) -> None:
    bucket = int(bucket_of_offset(torch.tensor([offset])))
    low, high = (0, 0) if bucket == 0 else (2 ** (bucket - 1), 2**bucket - 1)
    assert low <= offset <= high
    assert bucket < NUM_BUCKETS
