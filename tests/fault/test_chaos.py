"""Rounds of what a seed draws to break; at the end the losses are those of a run left alone.

LONGROW_CHAOS_ROUNDS and LONGROW_CHAOS_SEED say how many and which; `make chaos ROUNDS=50`.
"""

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import STEPS, Machine

ROUNDS = int(os.environ.get("LONGROW_CHAOS_ROUNDS", "8"))
SEED = int(os.environ.get("LONGROW_CHAOS_SEED", "1"))
MOST = 8  # rounds of one run of STEPS steps
# Sums in another order drift apart, the longer the further: 1e-5 is promised for short runs.
MOVING_STEPS, MOST_MOVES = 120, 2
LOCAL = (
    "kill_a_worker",
    "fill_the_disk",
    "flip_a_bit",
    "lock_the_record",
    "kill_the_driver",
    "freeze_a_worker",
    "stop",
)
RAY = ("kill_a_ray_worker", "kill_the_server", "lock_the_record", "kill_the_driver", "stop")
MOVES = ("stop", "kill_the_driver", "kill_a_worker")


def campaigns(share: float, most: int) -> list[tuple[int, int]]:
    """Seed and rounds of each run, `most` at most, that takes part in this share of all rounds."""
    left, found = max(2, round(ROUNDS * share)), []
    while left > 0:
        found.append((SEED * 1000 + len(found), min(most, left)))
        left -= most
    return found


def deck(names: tuple[str, ...], *, seed: int, rounds: int) -> list[str]:
    """What to break in each round: all of `names` in an order that is drawn, again and again."""
    draw = random.Random(seed)
    cards: list[str] = []
    while len(cards) < rounds:
        cards += draw.sample(names, len(names))
    return cards[:rounds]


def left_alone(store: Path, *, steps: int) -> list[tuple[int, float]]:
    """The losses of two workers that nothing happens to."""
    machine = Machine(store, seed=0, steps=steps)
    try:
        machine.to_the_end()
        found = machine.steps()
    finally:
        machine.remove()
    assert [step for step, _ in found] == list(range(1, steps + 1))
    return found


@pytest.fixture(scope="module")
def undisturbed(tiny_store: Path) -> list[tuple[int, float]]:
    return left_alone(tiny_store, steps=STEPS)


@pytest.fixture(scope="module")
def undisturbed_and_short(tiny_store: Path) -> list[tuple[int, float]]:
    return left_alone(tiny_store, steps=MOVING_STEPS)


@pytest.fixture
def machine(
    tiny_store: Path, request: pytest.FixtureRequest
) -> Iterator[Machine]:  # the parameter: seed, launcher, steps
    seed, launcher, steps = request.param
    machine = Machine(tiny_store, seed=seed, launcher=launcher, steps=steps)
    began = time.monotonic()
    yield machine
    sys.stdout.write("\n".join([*machine.told, f"{time.monotonic() - began:.0f} s\n"]))
    machine.remove()


def breaking(
    share: float, launcher: str, *, steps: int = STEPS, most: int = MOST
) -> pytest.MarkDecorator:
    runs = campaigns(share, most)
    return pytest.mark.parametrize(
        ("machine", "rounds"),
        [((seed, launcher, steps), rounds) for seed, rounds in runs],
        indirect=["machine"],
        ids=[f"seed-{seed}-rounds-{rounds}" for seed, rounds in runs],
    )


def recorded(machine: Machine) -> tuple[str, list[int]]:
    """The status of the run in MLflow, and the steps it has a loss for, as often as it has them."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{machine.database}")
    known = machine.folder.read_json("mlflow.json") or {}
    history = client.get_metric_history(known["run_id"], "train/loss")
    return client.get_run(known["run_id"]).info.status, sorted(one.step for one in history)


@pytest.mark.timeout(1800)
@breaking(0.5, "local")
def test_whatever_breaks_at_one_world_size_costs_not_one_bit(
    machine: Machine, rounds: int, undisturbed: list[tuple[int, float]]
) -> None:
    for name in deck(LOCAL, seed=machine.draw.randrange(10**6), rounds=rounds):
        machine.round(name, getattr(machine, name))
    machine.to_the_end()
    assert machine.steps() == undisturbed, machine.story()
    assert recorded(machine) == ("FINISHED", list(range(1, STEPS + 1)))


@pytest.mark.timeout(1800)
@breaking(0.25, "local", steps=MOVING_STEPS, most=MOST_MOVES)
def test_a_run_that_moves_between_world_sizes_keeps_its_losses(
    machine: Machine, rounds: int, undisturbed_and_short: list[tuple[int, float]]
) -> None:
    for name in deck(MOVES, seed=machine.draw.randrange(10**6), rounds=rounds):
        machine.round(name, getattr(machine, name))
        machine.workers = machine.draw.choice([W for W in (1, 2, 4) if machine.workers != W])
    machine.to_the_end()
    assert machine.steps() == [
        (step, pytest.approx(loss, rel=1e-5)) for step, loss in undisturbed_and_short
    ], machine.story()
    assert recorded(machine) == ("FINISHED", list(range(1, MOVING_STEPS + 1)))


@pytest.mark.timeout(1800)
@breaking(0.25, "ray")
def test_whatever_breaks_on_ray_costs_not_one_bit(
    machine: Machine, rounds: int, undisturbed: list[tuple[int, float]]
) -> None:
    for name in deck(RAY, seed=machine.draw.randrange(10**6), rounds=rounds):
        machine.round(name, getattr(machine, name))
    machine.to_the_end()
    assert machine.steps() == undisturbed, machine.story()
    assert recorded(machine) == ("FINISHED", list(range(1, STEPS + 1)))
