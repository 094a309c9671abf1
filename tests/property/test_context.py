"""Context is measured by forgetting: the same targets, and nothing usable beyond c tokens."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from model.memory import Memory
from model.transformer_xl import TransformerXL
from tests.models import V, fresh, options, same, shared_model
from tests.streams import corpora
from trainer.context import (
    Block,
    Measure,
    choose_blocks,
    context_points,
    effective_context,
    inputs_of,
    losses_by_context,
)


class Texts:
    """Held-out documents of random ids; the last id ends them, the one before begins them."""

    bos, eod, vocab_size = V - 2, V - 1, V

    def __init__(self, num_tokens: Sequence[int], *, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.texts = [draw.integers(0, V - 2, size=n).astype(np.uint16) for n in num_tokens]

    def doc_ids(self, split: str) -> npt.NDArray[np.int64]:
        return np.arange(len(self.texts) if split == "validation" else 0)

    def num_tokens(self, split: str) -> npt.NDArray[np.int64]:
        return np.array([len(self.texts[doc_id]) for doc_id in self.doc_ids(split)], dtype=np.int64)

    def read(self, doc_id: int) -> npt.NDArray[Any]:
        return np.append(self.texts[doc_id], np.uint16(self.eod))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Texts, list[Block], int]:
    """Documents, and blocks of one size anywhere in them."""
    size = draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(size, 25), min_size=1, max_size=4))
    blocks = [
        Block(doc_id=doc_id, start=draw(st.integers(0, n + 1 - size)))
        for doc_id, n in enumerate(lengths)
    ]
    return Texts(lengths, seed=draw(st.integers(0, 99))), blocks, size


def by_definition(
    model: TransformerXL, texts: Texts, block: Block, *, size: int, context: int
) -> Tensor:
    """Read the document from its first token on; forget, once, `context` tokens before the block.

    The memory holds the whole document all the while: what is forgotten is there, and not usable.
    """
    text = torch.from_numpy(texts.read(block.doc_id).astype("int64"))
    tokens = torch.cat([torch.tensor([texts.bos]), text[:-1]])[None]
    offset = torch.arange(tokens.shape[1])[None]
    memory = fresh(model, 1, 64)
    begin, end = max(0, block.start - context), block.start + size
    with torch.no_grad():
        if begin:
            _, memory = model(tokens[:, :begin], offset[:, :begin], memory)
            if context < block.start:
                memory = Memory(states=memory.states, usable=torch.zeros_like(memory.usable))
        hidden, _ = model(tokens[:, begin:end], offset[:, begin:end], memory)
        return model.nll(hidden[:, -size:], text[None, block.start : end])[0]


def measured(
    model: TransformerXL, texts: Texts, blocks: list[Block], size: int, contexts: tuple[int, ...],
    *, segment: int = 4, memory: int = 64, rows: int = 3,
) -> Tensor:  # fmt: skip
    measure = Measure(contexts=contexts, size=size, segment=segment, memory=memory, rows=rows)
    return losses_by_context(model, texts, blocks, measure)


@given(option=options, case=cases(), context=st.integers(0, 30), segment=st.integers(1, 9))
def test_a_context_of_c_is_a_reader_that_forgot_all_before_c_tokens_ago(
    option: int, case: tuple[Texts, list[Block], int], context: int, segment: int
) -> None:
    model, (texts, blocks, size) = shared_model(option), case
    found = measured(model, texts, blocks, size, (context,), segment=segment)
    for number, block in enumerate(blocks):
        wanted = by_definition(model, texts, block, size=size, context=context)
        same(found[0, number], wanted)


@given(option=options, case=cases(), context=st.integers(0, 30))
def test_a_model_without_memory_is_given_its_context_as_a_window(
    option: int, case: tuple[Texts, list[Block], int], context: int
) -> None:
    model, (texts, blocks, size) = shared_model(option), case
    found = measured(model, texts, blocks, size, (context,), memory=0)
    for number, block in enumerate(blocks):
        wanted = by_definition(model, texts, block, size=size, context=context)
        same(found[0, number], wanted)


@given(case=cases(), segment=st.integers(1, 9), more=st.integers(0, 40))
def test_more_context_than_the_document_has_is_all_of_it(
    case: tuple[Texts, list[Block], int], segment: int, more: int
) -> None:
    model, (texts, blocks, size) = shared_model(0), case
    for number, block in enumerate(blocks):
        contexts = (block.start, block.start + more)
        found = measured(model, texts, blocks, size, contexts, segment=segment)[:, number]
        text = torch.from_numpy(texts.read(block.doc_id).astype("int64"))
        tokens = torch.cat([torch.tensor([texts.bos]), text[:-1]])[None]
        with torch.no_grad():
            hidden, _ = model(tokens, torch.arange(tokens.shape[1])[None], fresh(model, 1, 0))
            whole = model.nll(hidden, text[None])[0, block.start : block.start + size]
        same(found[0], whole)
        same(found[1], whole)


@given(case=cases(), memory=st.integers(1, 9))
def test_no_context_is_a_block_without_memory(
    case: tuple[Texts, list[Block], int], memory: int
) -> None:
    model, (texts, blocks, size) = shared_model(1), case
    found = measured(model, texts, blocks, size, (0, 3), memory=memory)[0]
    tokens, offset, targets = inputs_of(texts, blocks, context=0, size=size)
    assert tokens.shape == (len(blocks), size)
    with torch.no_grad():
        hidden, _ = model(tokens, offset, fresh(model, len(blocks), 0))
        same(found, model.nll(hidden, targets))


@given(case=cases(), contexts=st.sets(st.integers(0, 30), min_size=2, max_size=4))
def test_every_context_scores_the_same_targets_after_the_same_inputs(
    case: tuple[Texts, list[Block], int], contexts: set[int]
) -> None:
    texts, blocks, size = case
    for context in contexts:
        tokens, offset, targets = inputs_of(texts, blocks, context=context, size=size)
        for row, block in enumerate(blocks):
            places = range(block.start, block.start + size)
            text = texts.read(block.doc_id).tolist()
            assert targets[row].tolist() == [text[place] for place in places]
            inputs = [text[place - 1] if place else texts.bos for place in places]
            assert tokens[row, -size:].tolist() == inputs
            before = min(context, block.start)
            assert offset[row].tolist() == [0] * (tokens.shape[1] - before - size) + list(
                range(block.start - before, block.start + size)
            )


@given(option=options, case=cases(), rows=st.integers(1, 5))
def test_rows_read_at_once_change_no_number(
    option: int, case: tuple[Texts, list[Block], int], rows: int
) -> None:
    model, (texts, blocks, size) = shared_model(option), case
    start = min(block.start for block in blocks)
    contexts = (0, start)
    one = measured(model, texts, blocks, size, contexts, memory=6, rows=1)
    same(measured(model, texts, blocks, size, contexts, memory=6, rows=rows), one)


@given(
    documents=corpora(),
    least=st.integers(0, 30),
    size=st.integers(1, 8),
    most=st.integers(1, 20),
)
def test_blocks_are_places_of_their_own_with_enough_before_them(
    documents: Any, least: int, size: int, most: int
) -> None:
    blocks = choose_blocks(documents, least=least, size=size, most=most)
    length_of = dict(
        zip(
            documents.doc_ids("validation").tolist(),
            documents.num_tokens("validation").tolist(),
            strict=True,
        )
    )
    everywhere = [
        Block(doc_id=doc_id, start=start)
        for doc_id, n in length_of.items()
        for start in range(least, n + 2 - size, size)
    ]
    assert len(set(blocks)) == len(blocks) == min(most, len(everywhere))
    assert blocks == [block for block in everywhere if block in blocks]
    if most >= len(everywhere):
        assert blocks == everywhere
    elif blocks:  # evenly: no stretch without one is twice the others
        places = [-1, *(everywhere.index(block) for block in blocks), len(everywhere)]
        assert max(np.diff(places)) <= 2 * len(everywhere) / most + 1


def test_the_effective_length_is_where_a_step_gains_too_little() -> None:
    # Ten targets; the hardest one alone gains from 0 to 1, another one loses by it.
    losses = torch.full((4, 1, 10), 1.0)
    losses[0, 0, 3], losses[1:, 0, 3] = 5.0, 4.0
    losses[1:, 0, 4] = 2.5
    losses[2:, 0, 3] = 3.995
    contexts = (0, 8, 16, 24)
    hard = effective_context(losses, contexts, ratio=0.1)
    assert hard.gains == pytest.approx((1 - math.exp(-1), 1 - math.exp(-0.005), 0), abs=1e-6)
    assert (hard.length, hard.at_least) == (8, False)
    every = effective_context(losses, contexts, ratio=1.0)  # the spoilt target is forgiven
    assert every.gains[0] == pytest.approx(1 - math.exp(-0.1), abs=1e-6)
    assert every.length == 8
    eager = effective_context(losses, contexts, ratio=0.1, threshold=0.001)
    assert eager.length == 16
    longest = effective_context(losses, contexts, ratio=0.1, threshold=0.0)
    assert (longest.length, longest.at_least) == (24, True)
    assert effective_context(losses, contexts, ratio=0.1, threshold=0.9).length == 0


def test_in_a_group_a_step_is_worth_what_it_adds_to_the_better_model_with_less() -> None:
    # Four targets: the first model is better at the shorter context, and gains nothing of its own;
    # the second catches up at 8 with a gain on its hardest target that the group already had.
    first, second = torch.full((3, 1, 4), 1.0), torch.full((3, 1, 4), 2.0)
    second[0, 0, 0], second[1:, 0, 0] = 6.0, 1.0
    second[2, 0, 1] = 0.5
    contexts, group = (0, 8, 16), [first, second]
    alone = effective_context(second, contexts, ratio=0.25)
    assert alone.gains[0] == pytest.approx(1 - math.exp(-5.0), abs=1e-6)
    grouped = effective_context(second, contexts, ratio=1.0, group=group)
    assert grouped.gains == pytest.approx((0, 1 - math.exp(-0.5 / 4)), abs=1e-6)
    assert effective_context(first, contexts, ratio=1.0, group=group).gains == (0, 0)
    assert effective_context(second, contexts, ratio=1.0, group=[second]) == effective_context(
        second, contexts, ratio=1.0
    )


def test_a_point_has_the_mean_and_how_sure_it_is() -> None:
    losses = torch.tensor([[[1.0, 3.0], [5.0, 7.0]], [[1.0, 1.0], [2.0, 2.0]]])
    short, long = context_points(losses, (0, 4))
    assert (short.loss, long.loss, long.error) == (4.0, 1.5, 0.0)
    assert short.error == pytest.approx(torch.tensor([1.0, 4.0]).std().item() / math.sqrt(2))
