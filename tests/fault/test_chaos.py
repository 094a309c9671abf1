"""Rounds of what a seed draws to break; at the end the losses are those of a run left alone.

LONGROW_CHAOS_ROUNDS and LONGROW_CHAOS_SEED say how many and which: `make chaos ROUNDS=50 SEED=7`.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests import breaks
from tests.chaos import EVERY, SCORED, Machine, MlflowServer

ROUNDS = int(os.environ.get("LONGROW_CHAOS_ROUNDS", "6"))
SEED = int(os.environ.get("LONGROW_CHAOS_SEED", "1"))
MOST = 10  # rounds of one run
# Sums in another order drift apart, the longer the further: 1e-5 is promised for short runs.
MOVING_STEPS, MOST_MOVES = 120, 3
Break = Callable[[Machine], None]
Told = list[tuple[int, float]]


def campaigns(share: float, most: int) -> list[tuple[int, int]]:
    """Seed and rounds of each run, `most` at most, that together take this share of all rounds."""
    left = max(2, round(ROUNDS * share))
    return [
        (SEED * 1000 + number, min(most, left - most * number))
        for number in range(-(-left // most))
    ]


def deck(cards: Sequence[Break], *, seed: int, rounds: int) -> list[Break]:
    """What to break in each round: all `cards` in an order that is drawn, again and again.

    The last one stops the run, so that it can be told where to end.
    """
    draw = random.Random(seed)
    drawn: list[Break] = []
    while len(drawn) < rounds:
        drawn += draw.sample(cards, len(cards))
    return [*drawn[: rounds - 1], breaks.stop]


def play(machine: Machine, card: Break, *, number: int, rounds: int) -> None:
    """One round: break the run, see it get further than it ever was, say so in a line."""
    began, before = time.monotonic(), machine.committed()
    fresh = not machine.processes
    if fresh:
        machine.start()
    when = machine.draw.choice(["in a step", "in a save", "as it starts"])
    if when == "as it starts" and fresh and before and card in breaks.ENDING:
        time.sleep(machine.draw.uniform(0, 8))
        machine.early = True
    else:
        goal = max(before, machine.done()) + machine.draw.randint(1, 2 * EVERY)
        machine.wait(lambda: machine.committed() > before and machine.done() >= goal)
        if when == "in a save":
            parts = machine.folder.checkpoints
            machine.wait(lambda: any(parts.glob("*.part")))
        else:
            when = "in a step"
    workers, step = machine.workers, machine.done()
    card(machine)
    machine.early = False
    if machine.committed() <= before:
        if not machine.processes:
            machine.start()
        machine.wait(lambda: machine.committed() > before)
    sys.stdout.write(
        f"round {number}/{rounds}  {machine.launcher} W={workers}  {card.__name__} {when} "
        f"{step}  committed {before} -> {machine.committed()}  {time.monotonic() - began:.0f} s\n"
    )
    sys.stdout.flush()


class LeftAlone:
    """The losses of two workers that nothing happens to, as far as they were asked for."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._known: Told = []
        self._scores: Told = []

    def up_to(self, steps: int) -> tuple[Told, Told]:
        """Of steps 1 to `steps`: what was learned from, and what the evaluations found."""
        if len(self._known) < steps:
            machine = Machine(self._store, seed=0, steps=steps)
            try:
                machine.start()
                machine.end({0})
                self._known, self._scores = machine.steps_told(), machine.scores_told()
            finally:
                machine.remove()
        assert [step for step, _ in self._known[:steps]] == list(range(1, steps + 1))
        scores = [(step, loss) for step, loss in self._scores if step <= steps]
        assert [step for step, _ in scores] == list(range(SCORED, steps + 1, SCORED))
        return self._known[:steps], scores


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty record, made once: it takes MLflow seconds."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="module")
def left_alone(tiny_store: Path) -> LeftAlone:
    return LeftAlone(tiny_store)


@pytest.fixture
def machine(
    tiny_store: Path, database: Path, request: pytest.FixtureRequest
) -> Iterator[Machine]:  # the parameter: seed and launcher
    seed, launcher = request.param
    machine = Machine(tiny_store, seed=seed, database=database, launcher=launcher)
    yield machine
    machine.remove()


def breaking(share: float, launcher: str, *, most: int = MOST) -> pytest.MarkDecorator:
    runs = campaigns(share, most)
    return pytest.mark.parametrize(
        ("machine", "rounds"),
        [((seed, launcher), rounds) for seed, rounds in runs],
        indirect=["machine"],
        ids=[f"seed-{seed}-rounds-{rounds}" for seed, rounds in runs],
    )


def break_all(machine: Machine, cards: Sequence[Break], rounds: int) -> Iterator[None]:
    """Play the rounds, giving way after each, and let the run end."""
    drawn = deck(cards, seed=machine.draw.randrange(10**6), rounds=rounds)
    if breaks.lose_mlflow in drawn:
        machine.mlflow = MlflowServer(machine)
    for number, card in enumerate(drawn, start=1):
        play(machine, card, number=number, rounds=rounds)
        if number == 1:
            machine.pin()
        yield
    if machine.processes:  # the last stop came before a step, and it went on
        breaks.stop(machine)
    machine.to_the_end()
    assert all((path / "manifest.json").is_file() for path in machine.pinned)


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
    machine: Machine, rounds: int, left_alone: LeftAlone
) -> None:
    for _ in break_all(machine, breaks.LOCAL, rounds):
        pass
    told = machine.steps_told(), machine.scores_told()
    assert told == left_alone.up_to(machine.steps)
    assert recorded(machine) == ("FINISHED", list(range(1, machine.steps + 1)))
    assert machine.left_over() == ({}, [], [])


@pytest.mark.timeout(1800)
@breaking(0.25, "local", most=MOST_MOVES)
def test_a_run_that_moves_between_world_sizes_keeps_its_losses(
    machine: Machine, rounds: int, left_alone: LeftAlone
) -> None:
    machine.steps = MOVING_STEPS
    for _ in break_all(machine, breaks.MOVES, rounds):
        machine.workers = machine.draw.choice([W for W in (1, 2, 4) if machine.workers != W])
    for told, known in zip(
        (machine.steps_told(), machine.scores_told()), left_alone.up_to(machine.steps), strict=True
    ):
        assert told == [(step, pytest.approx(loss, rel=1e-5)) for step, loss in known]
    assert recorded(machine) == ("FINISHED", list(range(1, machine.steps + 1)))
    assert machine.left_over() == ({}, [], [])


@pytest.mark.timeout(1800)
@breaking(0.25, "ray")
def test_whatever_breaks_on_ray_costs_not_one_bit(
    machine: Machine, rounds: int, left_alone: LeftAlone
) -> None:
    for _ in break_all(machine, breaks.RAY, rounds):
        pass
    told = machine.steps_told(), machine.scores_told()
    assert told == left_alone.up_to(machine.steps)
    assert recorded(machine) == ("FINISHED", list(range(1, machine.steps + 1)))
    assert machine.left_over() == ({}, [], [])
