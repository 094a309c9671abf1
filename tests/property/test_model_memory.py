"""What a row remembers, and what it must not: the invariants of memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.memory import Memory, join
from model.transformer_xl import TransformerXL
from tests.models import (
    OPTIONS,
    Stream,
    V,
    cuts_of,
    fresh,
    options,
    random_memory,
    read,
    same,
    shared_model,
    small_model,
    streams,
)


@given(option=options, stream=streams(), data=st.data())
def test_any_cut_into_segments_gives_the_same_numbers(
    option: int, stream: Stream, data: st.DataObject
) -> None:
    model = shared_model(option)
    B, T = stream.tokens.shape
    cuts = data.draw(cuts_of(T))
    whole, remembered = read(model, stream, fresh(model, B, T))
    pieces, also = read(model, stream, fresh(model, B, T), cuts)
    same(pieces, whole)
    same(also.states, remembered.states)
    assert also.usable.tolist() == remembered.usable.tolist() == [T] * B


@given(option=options, stream=streams(rows=4), data=st.data())
def test_a_row_reads_as_if_it_were_alone_and_in_any_place(
    option: int, stream: Stream, data: st.DataObject
) -> None:
    model = shared_model(option)
    B, T = stream.tokens.shape
    cuts = data.draw(cuts_of(T))
    order = data.draw(st.permutations(range(B)))
    memory = random_memory(model, B, 5)
    together, after = read(model, stream, memory, cuts)
    moved = join([memory.rows(row, row + 1) for row in order])
    permuted, after_moved = read(model, stream.rows(order), moved, cuts)
    same(permuted, together[order])
    same(after_moved.states, after.states[:, order])
    row = order[0]
    alone, _ = read(model, stream.rows([row]), memory.rows(row, row + 1), cuts)
    same(alone[0], together[row])


@given(option=options, stream=streams(rows=1), begin=st.integers(0, 13), data=st.data())
def test_a_document_reads_as_if_the_row_began_with_it(
    option: int, stream: Stream, begin: int, data: st.DataObject
) -> None:
    model = shared_model(option)
    T = stream.tokens.shape[1]
    begin %= T
    offset = stream.offset.clone()
    offset[:, begin:] = torch.arange(T - begin)
    stream = Stream(tokens=stream.tokens, offset=offset)
    cuts = data.draw(cuts_of(T))
    after_others, _ = read(model, stream, random_memory(model, 1, T), cuts)
    at_start, _ = read(model, stream.columns(begin, T), fresh(model, 1, T))
    same(after_others[:, begin:], at_start)


@given(option=options, stream=streams(), data=st.data())
def test_a_token_changes_nothing_before_it_nor_outside_its_document(
    option: int, stream: Stream, data: st.DataObject
) -> None:
    model = shared_model(option)
    B, T = stream.tokens.shape
    row, at = data.draw(st.integers(0, B - 1)), data.draw(st.integers(0, T - 1))
    cuts = data.draw(cuts_of(T))
    memory = random_memory(model, B, data.draw(st.integers(0, 8)))
    before, _ = read(model, stream, memory, cuts)
    tokens = stream.tokens.clone()
    tokens[row, at] = (tokens[row, at] + data.draw(st.integers(1, V - 1))) % V
    after, _ = read(model, Stream(tokens=tokens, offset=stream.offset), memory, cuts)
    changed = (before != after).any(dim=2)
    begins = (stream.offset[row] == 0).nonzero().flatten().tolist()
    end = min([begin for begin in begins if begin > at], default=T)
    assert changed[row, at]
    changed[row, at:end] = False
    assert not changed.any()


@given(option=options, stream=streams(), length=st.integers(1, 9), data=st.data())
def test_what_is_not_usable_is_never_seen(
    option: int, stream: Stream, length: int, data: st.DataObject
) -> None:
    model = shared_model(option)
    B, T = stream.tokens.shape
    cuts = data.draw(cuts_of(T))
    usable = data.draw(st.lists(st.integers(0, length), min_size=B, max_size=B))
    clean = random_memory(model, B, length)
    states = clean.states.clone()
    for row, count in enumerate(usable):
        states[:, row, : length - count] = 1e4
    count = torch.tensor(usable)
    wanted, _ = read(model, stream, Memory(states=clean.states, usable=count), cuts)
    found, after = read(model, stream, Memory(states=states, usable=count), cuts)
    assert torch.equal(found, wanted)
    assert after.usable.tolist() == [min(length, one + T) for one in usable]


@given(option=options, stream=streams(), lengths=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_a_longer_memory_with_nothing_more_usable_changes_nothing(
    option: int, stream: Stream, lengths: tuple[int, int]
) -> None:
    model = shared_model(option)
    short, long = sorted(lengths)
    memory = random_memory(model, len(stream.tokens), short)
    wanted, after = read(model, stream, memory)
    found, after_long = read(model, stream, memory.resized(long))
    same(found, wanted)
    same(after_long.resized(short).states, after.states)
    assert after_long.resized(short).usable.tolist() == after.usable.tolist()


@given(stream=streams(rows=3), data=st.data())
def test_a_row_with_states_that_are_not_finite_forgets_alone(
    stream: Stream, data: st.DataObject
) -> None:
    broken = small_model()
    poison = V - 1
    with torch.no_grad():
        broken.embedding.tables[0][poison] = data.draw(st.sampled_from([torch.nan, torch.inf]))
    B, T = stream.tokens.shape
    tokens = stream.tokens.clamp(max=poison - 1)
    row = data.draw(st.integers(0, B - 1))
    clean = Stream(tokens=tokens.clone(), offset=stream.offset)
    tokens[row, data.draw(st.integers(0, T - 1))] = poison
    _, wanted = read(broken, clean, random_memory(broken, B, 4))
    hidden, memory = read(
        broken, Stream(tokens=tokens, offset=stream.offset), random_memory(broken, B, 4)
    )
    assert not hidden[row].isfinite().all()
    assert memory.usable[row] == 0
    assert (memory.states[:, row] == 0).all()
    others = [other for other in range(B) if other != row]
    assert torch.equal(memory.states[:, others], wanted.states[:, others])
    assert torch.equal(memory.usable[others], wanted.usable[others])
    # and it reads on as a row that has read nothing
    on, _ = read(broken, clean, memory)
    new, _ = read(broken, clean.rows([row]), fresh(broken, 1, 4))
    same(on[row], new[0])


@pytest.mark.parametrize("option", range(len(OPTIONS)))
def test_no_gradient_goes_into_memory(option: int) -> None:
    model = small_model(**OPTIONS[option])
    memory = random_memory(model, 2, 5)
    memory.states.requires_grad_()
    tokens = torch.randint(V, (2, 4), generator=torch.Generator().manual_seed(0))
    hidden, after = model(tokens, torch.arange(4).expand(2, 4) + 9, memory)
    assert not after.states.requires_grad
    model.nll(hidden, tokens).sum().backward()
    assert memory.states.grad is None
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize("final", [True, False])
def test_the_last_output_is_normalised_where_the_config_says_so(final: bool) -> None:
    model = small_model(pre_norm=True, final_norm=final)
    for name, weight in model.norm.named_parameters():
        weight.data.fill_(float(name == "weight"))
    hidden, _ = model(torch.zeros(1, 3, dtype=torch.int64), torch.arange(3)[None], fresh(model, 1))
    assert bool((hidden.var(dim=2, correction=0) - 1).abs().max() < 1e-3) == final


def graph_nodes(root: torch.Tensor) -> int:
    seen, todo = set(), [root.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
    return len(seen)


def test_the_graph_of_a_step_does_not_grow_with_what_was_read() -> None:
    model = small_model(pre_norm=True)
    memory = fresh(model, 2)
    offset = torch.arange(200).expand(2, 200)
    tokens = torch.randint(V, (2, 200), generator=torch.Generator().manual_seed(0))
    nodes, shapes, storages = set(), set(), set()
    for low in range(0, 200, 4):
        part = slice(low, low + 4)
        hidden, memory = model(tokens[:, part], offset[:, part], memory)
        nodes.add(graph_nodes(model.nll(hidden, tokens[:, part]).sum()))
        shapes.add(memory.states.shape)
        storages.add(memory.states.untyped_storage().nbytes())
    assert len(nodes) == len(shapes) == len(storages) == 1


@given(stream=streams(), data=st.data())
def test_float32_is_float64_to_rounding(stream: Stream, data: st.DataObject) -> None:
    option = data.draw(options)
    exact = shared_model(option)
    single = float32_twin(option)
    cuts = data.draw(cuts_of(stream.tokens.shape[1]))
    wanted, _ = read(exact, stream, fresh(exact, len(stream.tokens)), cuts)
    found, _ = read(single, stream, fresh(single, len(stream.tokens)), cuts)
    assert found.dtype == torch.float32
    same(found.double(), wanted, close=1e-3)


def float32_twin(option: int) -> TransformerXL:
    single = TransformerXL(shared_model(option).config)
    single.load_state_dict(shared_model(option).state_dict())
    return single.requires_grad_(False)
