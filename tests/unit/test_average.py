"""The moving average of the weights, the spike guard and the schedules, by their definitions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trainer.average import averaged, begin_average, move_average
from trainer.optimizer import learning_rate
from trainer.settings import OptimizerSettings
from trainer.spikes import FEWEST, judge


def test_an_average_is_the_weighted_sum_of_all_weights_so_far() -> None:
    model = nn.Linear(3, 2)
    path = [[weight.detach().clone() for weight in model.parameters()]]
    average = begin_average(model)
    for step in range(5):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(step + 1)
        path.append([weight.detach().clone() for weight in model.parameters()])
        move_average(average, model, decay=0.9)
    for place, mean in enumerate(average):
        wanted = 0.9**5 * path[0][place]
        wanted = wanted + sum(0.1 * 0.9 ** (5 - i) * path[i][place] for i in range(1, 6))
        torch.testing.assert_close(mean, wanted)


def test_the_weights_come_back_to_the_bit_after_an_evaluation_that_fails() -> None:
    model = nn.Linear(3, 2)
    before = begin_average(model)
    average = [torch.full_like(weight, 7.0) for weight in before]

    def evaluation() -> None:
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), average, strict=True))
        raise KeyError

    with pytest.raises(KeyError), averaged(model, average):
        evaluation()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def walk(norms: list[float], *, factor: float) -> tuple[list[bool], torch.Tensor]:
    seen, applied = torch.zeros(2, dtype=torch.float64), []
    for norm in norms:
        usual, seen = judge(torch.tensor(norm), seen, factor=factor)
        applied.append(bool(usual))
    return applied, seen


@given(st.lists(st.floats(0.5, 1.5, width=32), min_size=FEWEST, max_size=60))
def test_a_norm_far_above_the_usual_is_a_spike_and_no_usual_one_is(norms: list[float]) -> None:
    applied, seen = walk([*norms, 100.0, 1.0], factor=10.0)
    assert applied == [True] * len(norms) + [False, True]
    assert 0.5 <= float(seen[0]) <= 1.5 + 10 * 1.5 / (FEWEST + 1)


def test_a_norm_that_is_not_finite_is_skipped_and_teaches_nothing() -> None:
    calm, seen = walk([1.0] * 30, factor=5.0)
    shaken, same = walk([1.0] * 30 + [math.nan, math.inf], factor=5.0)
    assert shaken == [*calm, False, False]
    assert torch.equal(seen, same)


def test_without_a_factor_only_what_is_not_finite_is_skipped() -> None:
    assert walk([1.0] * 30 + [1e30, math.nan], factor=0.0)[0] == [True] * 31 + [False]


def test_a_lasting_change_is_followed_in_the_end() -> None:
    applied, _ = walk([1.0] * 50 + [30.0] * 60, factor=10.0)
    assert not applied[50]
    assert all(applied[80:])


SCHEDULES = ("cosine", "linear", "inverse_sqrt", "constant")


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(warmup=st.integers(0, 50), steps=st.integers(1, 200))
def test_a_schedule_rises_to_the_peak_once_and_never_again(
    schedule: str, warmup: int, steps: int
) -> None:
    settings = OptimizerSettings(
        learning_rate=2.0,
        warmup_steps=warmup,
        schedule=schedule,  # pyright: ignore[reportArgumentType] - one of SCHEDULES
        final_ratio=0.25,
    )
    rates = [learning_rate(step, settings, steps=steps) for step in range(steps)]
    turn = min(warmup, steps)
    assert rates[:turn] == sorted(rates[:turn])
    assert rates[turn:] == sorted(rates[turn:], reverse=True)
    assert all(0 < rate <= 2.0 for rate in rates)
    if warmup < steps:
        assert max(rates) == pytest.approx(2.0, rel=0.5)
    if schedule in ("cosine", "linear") and warmup < steps - 1:
        assert rates[-1] == pytest.approx(0.5)


def test_each_schedule_is_the_one_it_is_called_after() -> None:
    def rate(schedule: str, step: int) -> float:
        settings = OptimizerSettings(
            learning_rate=1.0,
            warmup_steps=100,
            schedule=schedule,  # pyright: ignore[reportArgumentType] - one of SCHEDULES
            final_ratio=0.0,
        )
        return learning_rate(step, settings, steps=1101)

    assert rate("inverse_sqrt", 99) == pytest.approx(1.0)
    assert rate("inverse_sqrt", 399) == pytest.approx(0.5)
    assert rate("linear", 350) == pytest.approx(0.75)
    assert rate("cosine", 600) == pytest.approx(0.5)
    assert rate("constant", 1100) == 1.0
