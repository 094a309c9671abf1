"""The learning rate is a function of the step, and what decays is what should."""

import math

import pytest

from model.config import ModelConfig
from model.transformer_xl import TransformerXL
from trainer.optimizer import learning_rate, make_optimizer
from trainer.settings import OptimizerSettings

SETTINGS = OptimizerSettings(learning_rate=1.0, warmup_steps=10, final_ratio=0.1)


def test_the_rate_rises_in_equal_steps_to_the_peak() -> None:
    rates = [learning_rate(step, SETTINGS, steps=100) for step in range(10)]
    assert rates == pytest.approx([(step + 1) / 10 for step in range(10)])


def test_the_cosine_begins_at_the_peak_and_ends_at_the_floor() -> None:
    assert learning_rate(10, SETTINGS, steps=100) == 1.0
    assert learning_rate(99, SETTINGS, steps=100) == pytest.approx(0.1)
    middle = learning_rate(10 + 89 // 2, SETTINGS, steps=100)
    assert middle == pytest.approx(0.55, abs=0.02)
    rates = [learning_rate(step, SETTINGS, steps=100) for step in range(10, 100)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("steps", [1, 2, 5, 11])
def test_a_run_shorter_than_its_warm_up_has_a_rate_at_every_step(steps: int) -> None:
    for step in range(steps):
        rate = learning_rate(step, SETTINGS, steps=steps)
        assert math.isfinite(rate)
        assert 0 < rate <= 1.0


def test_projections_decay_and_nothing_else_does() -> None:
    config = ModelConfig(
        vocab_size=50,
        layers=2,
        width=8,
        heads=2,
        head_width=4,
        inner_width=8,
        cutoffs=(10, 20),
        div_val=2,
        pre_norm=True,
        tie_weights=False,
    )
    model = TransformerXL(config)
    decayed, free = make_optimizer(model, OptimizerSettings(weight_decay=0.5)).param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.5, 0.0)
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    names = [{name_of[id(p)] for p in group["params"]} for group in (decayed, free)]
    assert names[0] | names[1] == set(name_of.values())
    layers = {
        f"layers.{layer}.{part}.weight"
        for layer in range(2)
        for part in ("query", "key_value", "position", "output", "inner", "outer")
    }
    projections = {f"{side}.projections.{i}" for side in ("embedding", "softmax") for i in range(3)}
    assert names[0] == layers | projections
