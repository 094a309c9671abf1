"""Reading and writing with projected memory equals doing it by the definition."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model import generate as module
from model.config import ModelError
from model.generate import Sampling, choose, generate, generate_rows
from model.noise import uniform
from model.reach import Reach
from model.recall import Recall
from model.transformer_xl import TransformerXL
from tests.models import (
    OPTIONS,
    Stream,
    V,
    cuts_of,
    fresh,
    options,
    read,
    same,
    shared_model,
    small_model,
    streams,
)

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    seed=st.integers(0, 9),
)
prompts_of_rows = st.lists(
    st.lists(st.integers(0, V - 1), min_size=1, max_size=9), min_size=1, max_size=3
)


@given(
    option=options,
    stream=streams(length=30),
    memory=st.integers(0, 9),
    window=st.integers(0, 6),
    data=st.data(),
)
def test_reading_with_keys_and_values_kept_is_reading_with_hidden_states_kept(
    option: int, stream: Stream, memory: int, window: int, data: st.DataObject
) -> None:
    model = shared_model(option)
    reach = Reach(memory=memory, clamp_len=model.config.clamp_len, window=window)
    cuts = data.draw(cuts_of(stream.tokens.shape[1]))
    rows = len(stream.tokens)
    recall, states = Recall(model, rows, reach), fresh(model, rows, memory)
    for low, high in pairwise(cuts):
        part = stream.columns(low, high)
        wanted, states = model(part.tokens, part.offset, states, reach=reach)
        same(recall.read(part.tokens, part.offset), wanted)


def step_by_step(
    model: TransformerXL,
    prompt: list[int],
    *,
    count: int,
    sampling: Sampling,
    memory: int,
    row: int,
) -> list[int]:
    """Generate by the definition: one token at a time, hidden states kept."""
    window = memory if model.config.same_length else memory + 1
    reach = Reach(memory=memory, clamp_len=model.config.clamp_len, window=window)
    states = fresh(model, 1, memory)
    made: list[int] = []
    log_prob = torch.empty(0)
    while len(made) < count:
        text = prompt + made
        for at in range(len(text) - 1 if made else 0, len(text)):
            hidden, states = model(
                torch.tensor([[text[at]]]), torch.tensor([[at]]), states, reach=reach
            )
            log_prob = model.log_prob(hidden[:, -1])
        # a row of a batch draws its own numbers: put this one in its place
        made.append(int(choose(log_prob.expand(row + 1, -1), sampling, step=len(made))[row]))
    return made


@given(
    option=options,
    prompts=prompts_of_rows,
    sampling=samplings,
    memory=st.integers(1, 12),
    piece=st.integers(1, 5),
)
def test_generated_text_is_that_of_step_by_step_recomputation(
    option: int, prompts: list[list[int]], sampling: Sampling, memory: int, piece: int
) -> None:
    model = shared_model(option)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", piece)
        rows = list(
            generate_rows(model, prompts, eod=-1, max_tokens=6, sampling=sampling, memory=memory)
        )
    for row, prompt in enumerate(prompts):
        wanted = step_by_step(model, prompt, count=6, sampling=sampling, memory=memory, row=row)
        assert [ids[row] for ids in rows] == wanted


@given(prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=5), seed=st.integers(0, 50))
def test_a_text_ends_at_its_document_end(prompt: list[int], seed: int) -> None:
    model = shared_model(1)
    sampling = Sampling(seed=seed, temperature=3.0)
    free = list(generate(model, prompt, eod=-1, max_tokens=20, sampling=sampling))
    assert len(free) == 20
    eod = free[7]
    ended = list(generate(model, prompt, eod=eod, max_tokens=20, sampling=sampling))
    assert ended == free[: free.index(eod)]
    both = list(generate_rows(model, [prompt, prompt], eod=eod, max_tokens=20, sampling=sampling))
    first = [ids[0] for ids in both]
    assert first[: len(ended)] == ended
    assert set(first[len(ended) :]) <= {None}


def test_sampling_follows_the_probabilities_it_is_allowed() -> None:
    p = torch.tensor([0.05, 0.4, 0.0, 0.3, 0.25]).double()
    log_prob = p.log().expand(20_000, -1)

    def shares(**settings: Any) -> list[float]:
        chosen = choose(log_prob, Sampling(**settings), step=3)
        return (chosen.bincount(minlength=5) / len(chosen)).tolist()

    assert shares() == pytest.approx(p.tolist(), abs=0.02)
    assert shares()[2] == 0
    assert shares(top_k=2) == pytest.approx([0, 0.4 / 0.7, 0, 0.3 / 0.7, 0], abs=0.02)
    # 0.4 + 0.3 reach 0.65, so the third is out; 0.71 needs it
    assert shares(top_p=0.65)[4] == 0
    assert shares(top_p=0.71)[4] > 0.2
    assert shares(top_p=1e-9) == [0, 1, 0, 0, 0]
    assert shares(temperature=0) == [0, 1, 0, 0, 0]
    hot = (p / p.sum()) ** 0.5
    assert shares(temperature=2.0) == pytest.approx((hot / hot.sum()).tolist(), abs=0.02)


def test_a_number_just_below_one_still_chooses_what_has_a_probability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    almost = torch.full((1,), 1 - 2**-53, dtype=torch.float64)
    monkeypatch.setattr(module, "uniform", lambda *_: almost)
    log_prob = torch.tensor([[0.1, 0.2, 0.7, 0.0]]).log()
    assert choose(log_prob, Sampling(), step=0).item() == 0  # the least likely that can be
    assert uniform(0, 0, torch.arange(3)).shape == (3,)


@pytest.mark.parametrize("option", range(len(OPTIONS)))
def test_generation_builds_no_graph_and_leaves_the_model_alone(option: int) -> None:
    model = small_model(**OPTIONS[option])
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert len(list(generate(model, [1, 2], eod=-1, max_tokens=3))) == 3
    recall = Recall(model, 1, Reach(memory=4))
    assert recall.read(torch.tensor([[1]]), torch.tensor([[0]])).grad_fn is None
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_what_cannot_be_generated_is_refused() -> None:
    model = shared_model(0)
    with pytest.raises(ModelError, match="A prompt is empty"):
        next(generate(model, [], eod=1, max_tokens=1))
    with pytest.raises(ModelError, match="give generation a memory"):
        next(generate(model, [1], eod=1, max_tokens=1, memory=0))
    with pytest.raises(ModelError, match=r"top_p = 0\.0"):
        Sampling(top_p=0.0)


def test_rows_that_meet_what_is_not_finite_forget_with_keys_and_values_too() -> None:
    model = small_model()
    with torch.no_grad():
        model.embedding.tables[0][V - 1] = torch.nan
    tokens = torch.tensor([[1, V - 1, 2], [3, 4, 5]])
    offset = torch.arange(3).expand(2, 3)
    clean = Stream(tokens=torch.tensor([[6, 7], [6, 7]]), offset=torch.tensor([[3, 4], [3, 4]]))
    reach = Reach(memory=6)
    recall = Recall(model, 2, reach)
    recall.read(tokens, offset)
    _, states = model(tokens, offset, fresh(model, 2, 6), reach=reach)
    wanted, _ = read(model, clean, states)
    same(recall.read(clean.tokens, clean.offset), wanted)
    assert wanted.isfinite().all()
