"""Dropout that depends on the seed, the step and the row, and on nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.backends import BACKENDS
from model.memory import join
from model.noise import Noise, drop, uniform
from tests.models import Stream, random_memory, same, small_model, streams

NOISY = [
    small_model(dropout=0.2, attention_dropout=0.3, **changes)
    for changes in ({}, {"pre_norm": True, "cutoffs": (5, 12), "div_val": 2})
]


@given(which=st.integers(0, 1), stream=streams(rows=4), step=st.integers(0, 2**40), data=st.data())
def test_noise_does_not_depend_on_how_rows_are_spread(
    which: int, stream: Stream, step: int, data: st.DataObject
) -> None:
    model = NOISY[which]
    B = len(stream.tokens)
    rows = torch.tensor(data.draw(st.permutations(range(100, 100 + B))))
    memory = random_memory(model, B, 5)
    whole, after = model(stream.tokens, stream.offset, memory, Noise(seed=3, step=step, rows=rows))
    cut = data.draw(st.integers(0, B - 1))
    parts = []
    for low, high in ((0, cut), (cut, B)):
        if low < high:
            part = stream.rows(range(low, high))
            noise = Noise(seed=3, step=step, rows=rows[low:high])
            parts.append(model(part.tokens, part.offset, memory.rows(low, high), noise))
    same(torch.cat([hidden for hidden, _ in parts]), whole)
    same(join([memory for _, memory in parts]).states, after.states)


@given(stream=streams(rows=2), data=st.data())
def test_fast_attention_loses_the_same_weights_as_the_plain(
    stream: Stream, data: st.DataObject
) -> None:
    model = NOISY[data.draw(st.integers(0, 1))]
    B = len(stream.tokens)
    noise = Noise(seed=1, step=data.draw(st.integers(0, 9)), rows=torch.arange(B))
    found = []
    for backend in BACKENDS:
        if backend == "triton":  # loses no weights: test_attention_triton.py
            continue
        model.chosen = backend
        found.append(model(stream.tokens, stream.offset, random_memory(model, B, 3), noise)[0])
    model.chosen = "auto"
    for other in found:
        same(other, found[0])


def test_every_place_that_loses_has_its_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, int, tuple[int, ...]]] = []
    original = Noise.dropped

    def recorded(self: Noise, site: int, shape: tuple[int, ...], rate: float) -> torch.Tensor:
        drawn.append((site, int(rate * 10), shape))
        return original(self, site, shape, rate)

    monkeypatch.setattr(Noise, "dropped", recorded)
    model = small_model(backend="plain", dropout=0.2, attention_dropout=0.3)
    tokens, offset = torch.zeros(2, 3, dtype=torch.int64), torch.arange(3).expand(2, 3)
    noise = Noise(seed=0, step=0, rows=torch.arange(2))
    model(tokens, offset, random_memory(model, 2, 4), noise)
    layer = [(3, (2, 2, 3, 7)), (2, (2, 3, 12)), (2, (2, 3, 10)), (2, (2, 3, 12))]
    ends = [(2, (2, 3, 12)), (2, (1, 8, 12)), (2, (2, 3, 12))]  # embedded, positions, last
    assert sorted(one[1:] for one in drawn) == sorted(2 * layer + ends)
    assert len({site for site, *_ in drawn}) == len(drawn)


def lost(*, seed: int = 0, step: int = 0, row: int = 0, site: int = 0) -> torch.Tensor:
    noise = Noise(seed=seed, step=step, rows=torch.tensor([row]))
    return noise.dropped(site, (1, 40_000), 0.25)[0]


def test_seed_step_row_and_site_each_make_their_own_noise_at_the_asked_rate() -> None:
    draws = [lost(), lost(seed=1), lost(step=1), lost(row=1), lost(site=1), lost(row=-1)]
    assert torch.equal(draws[0], lost())
    for number, draw in enumerate(draws):
        # 40,000 decisions: five standard deviations of the share are 0.011
        assert abs(draw.double().mean().item() - 0.25) < 0.011
        for other in draws[:number]:
            both = (draw & other).double().mean().item()
            assert abs(both - 0.0625) < 0.007
    one = draws[0]
    for distance in (1, 2, 3, 4, 5, 64):  # neighbours, also those of one random word
        both = (one[distance:] & one[:-distance]).double().mean().item()
        assert abs(both - 0.0625) < 0.007


def test_what_is_kept_is_scaled_and_so_is_its_gradient() -> None:
    x = torch.ones(3, 5, 7, dtype=torch.float64, requires_grad=True)
    noise = Noise(seed=0, step=0, rows=torch.arange(3))
    y = drop(x, 0.2, noise, 4)
    assert set(y.unique().tolist()) == {0.0, 1.25}
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y)
    assert drop(x, 0.2, None, 4) is x
    assert drop(x, 0.0, noise, 4) is x


def test_uniform_numbers_are_uniform_and_a_rows_own() -> None:
    rows = torch.arange(20_000)
    numbers = uniform(7, 0, rows)
    assert torch.equal(numbers[100:200], uniform(7, 0, rows[100:200]))
    assert ((numbers >= 0) & (numbers < 1)).all()
    counts = numbers.mul(10).long().bincount(minlength=10)
    assert ((counts - 2000).abs() < 220).all()  # five standard deviations


def test_the_noise_is_the_one_written_down() -> None:
    # A run resumed by a later version must lose what this one would have lost.
    noise = Noise(seed=42, step=7, rows=torch.tensor([0, 5]))
    bits = noise.dropped(3, (2, 16), 0.5).long()
    weights = 2 ** torch.arange(16)
    assert (bits * weights).sum(dim=1).tolist() == [29406, 18741]


@given(seed=st.integers(0, 2**63 - 1), step=st.integers(0, 2**62), site=st.integers(0, 99))
def test_a_step_as_a_tensor_gives_the_same_noise(seed: int, step: int, site: int) -> None:
    rows = torch.arange(3)
    for each in (
        Noise(seed=seed, step=step, rows=rows),
        Noise(seed=seed, step=step, rows=rows + 7),
    ):
        twin = Noise(seed=seed, step=torch.tensor(step), rows=each.rows)
        shape = (3, 5, 7)
        assert torch.equal(twin.dropped(site, shape, 0.3), each.dropped(site, shape, 0.3))
        wanted = each.shared().dropped(site, (1, 9), 0.3)
        assert torch.equal(twin.shared().dropped(site, (1, 9), 0.3), wanted)
