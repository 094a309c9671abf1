"""A pad changes no number: it is not scored, not learned from, and nothing remembers it."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.memory import Memory
from model.transformer_xl import TransformerXL
from pipeline.batch import NO_TARGET, Batch
from pipeline.layout import Layout
from pipeline.server import RowServer
from tests.models import fresh, options, same, shared_model, small_model
from tests.streams import Positions, walk
from trainer.step import Objective, Rows

V = 23


@st.composite
def padded(draw: st.DrawFn) -> list[Batch]:
    """Some steps of rows whose documents begin in segments of their own; V token ids."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=3, max_size=8))
    documents = Positions(lengths, vocab_size=1000)
    segment, seed = draw(st.integers(2, 5)), draw(st.integers(0, 99))
    server = RowServer(documents, Layout(rows=3, segment=segment, seed=seed, boundary="pad"))
    return [
        replace(
            batch,
            tokens=batch.tokens % V,
            targets=np.where(batch.targets >= 0, batch.targets % V, NO_TARGET),
        )
        for batch, _ in walk(server, server.initial_state(), 6)
    ]


def with_other_pads(batch: Batch, seed: int) -> Batch:
    other = np.random.default_rng(seed).integers(0, V, batch.tokens.shape).astype(np.uint16)
    return replace(batch, tokens=np.where(batch.doc_id < 0, other, batch.tokens))


def tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    tokens, offset, targets = (
        torch.from_numpy(array.astype("int64"))
        for array in (batch.tokens, batch.offset, batch.targets)
    )
    return tokens, offset, targets


def nll_of(model: TransformerXL, batch: Batch, memory: Memory) -> tuple[Tensor, Memory]:
    """(real targets,) and the memory."""
    tokens, offset, targets = tensors(batch)
    hidden, memory = model(tokens, offset, memory)
    return model.nll(hidden, targets)[targets >= 0], memory


@settings(max_examples=20)
@given(batches=padded(), option=options, seed=st.integers(0, 99))
def test_what_stands_in_pads_changes_no_number(
    batches: list[Batch], option: int, seed: int
) -> None:
    model = shared_model(option)
    ours, theirs = fresh(model, 3), fresh(model, 3)
    for batch in batches:
        found, ours = nll_of(model, batch, ours)
        other, theirs = nll_of(model, with_other_pads(batch, seed), theirs)
        same(other, found)


@settings(max_examples=20)
@given(batches=padded(), option=options)
def test_a_document_behind_pads_reads_as_if_it_stood_alone(
    batches: list[Batch], option: int
) -> None:
    model = shared_model(option)
    memory, alone = fresh(model, 3), [fresh(model, 1) for _ in range(3)]
    for batch in batches:
        tokens, offset, targets = tensors(batch)
        hidden, memory = model(tokens, offset, memory)
        for row in range(3):
            assert (batch.offset[row, 0] == 0) == batch.reset[row]
            if batch.reset[row]:
                alone[row] = fresh(model, 1)
            real = int((batch.doc_id[row] >= 0).sum())
            assert (targets[row, real:] == NO_TARGET).all()
            told, alone[row] = model(
                tokens[row : row + 1, :real], offset[row : row + 1, :real], alone[row]
            )
            same(told[0], hidden[row, :real])


def test_nothing_is_learned_from_pads() -> None:
    server = RowServer(
        Positions([3, 5, 0, 9], vocab_size=1000), Layout(rows=3, segment=4, boundary="pad")
    )
    batches = [
        replace(
            batch,
            tokens=batch.tokens % V,
            targets=np.where(batch.targets >= 0, batch.targets % V, NO_TARGET),
        )
        for batch, _ in walk(server, server.initial_state(), 3)
    ]
    assert any((batch.doc_id < 0).any() for batch in batches)

    def gradient(seed: int | None) -> Tensor:
        model = small_model()
        memory = fresh(model, 3)
        for batch in batches:
            read = batch if seed is None else with_other_pads(batch, seed)
            tokens, offset, targets = tensors(read)
            rows = Rows(tokens=tokens, targets=targets, offset=offset, numbers=torch.arange(3))
            Objective(model, z_loss=0.1)(rows, memory, None)[0].backward()
            memory = model(tokens, offset, memory)[1]
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    same(gradient(1), gradient(None))
