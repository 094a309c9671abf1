"""Scorers behind Ray: several share an evaluation, and what they find is exact to the count."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import torch
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from torch import Tensor

from trainer.context import Block, Measure
from trainer.evaluation import Wanted
from trainer.scorer import Scorer, ScorerPlan, Tell, WorkerDiedError, quiet
from trainer.sums import Sums, no_sums

LOOK_S = 0.5  # seconds between two looks at how far the workers are
SILENT_S = 120.0  # a worker may take so long to start, or to answer; then it hangs
_DEATHS = (RayActorError, OutOfMemoryError, WorkerCrashedError)


@ray.remote
class ScorerActor:
    """Scorer behind Ray."""

    def __init__(self, plan: ScorerPlan) -> None:
        self._scorer = Scorer(plan.open, sharing=plan.sharing)

    @ray.method
    def sums(self, wanted: Wanted, share: tuple[int, int]) -> Sums:
        return self._scorer.sums(wanted, share=share)

    @ray.method
    def losses(self, blocks: list[Block], measure: Measure, share: tuple[int, int]) -> Tensor:
        return self._scorer.losses(blocks, measure, share=share)

    @ray.method
    def done(self) -> int:
        return self._scorer.done()


class Scorers:
    """Several workers, asked as one Scorer is.

    Args:
        actors: The workers, in order.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors
        self._looks: dict[int, Any] = {}  # what each was asked and has not answered
        self._done = [0] * len(actors)
        self._heard = [time.monotonic()] * len(actors)
        self._grown = time.monotonic()

    def sums(self, wanted: Wanted, *, tell: Tell = quiet) -> Sums:
        """Add up the sums of all workers, in their order."""
        total = no_sums()
        for part in self._ask(lambda actor, share: actor.sums.remote(wanted, share), tell):
            total.nats.add_(part.nats)
            total.targets.add_(part.targets)
        return total

    def losses(self, blocks: Sequence[Block], measure: Measure, *, tell: Tell = quiet) -> Tensor:
        """The losses of all blocks, in their order: (C, blocks, size), float64."""
        asked = ray.put(list(blocks))
        parts = self._ask(lambda actor, share: actor.losses.remote(asked, measure, share), tell)
        return torch.cat(parts, dim=1)

    def _ask(self, ask: Callable[[Any, tuple[int, int]], Any], tell: Tell) -> list[Any]:
        """Ask all; give their answers in order.

        Raises:
            Exception: What the first that failed raised, as it was.
            WorkerDiedError: The first that failed is gone, or hangs.
        """
        count = len(self._actors)
        self._heard, self._grown = [time.monotonic()] * count, time.monotonic()
        asked = [ask(actor, (worker, count)) for worker, actor in enumerate(self._actors)]
        answers: dict[Any, Any] = {}
        while waiting := [reference for reference in asked if reference not in answers]:
            ended, _ = ray.wait(waiting, num_returns=1, timeout=LOOK_S)
            for reference in ended:
                try:
                    answers[reference] = ray.get(reference)
                except RayTaskError as error:
                    raise error.cause from None
                except _DEATHS as error:
                    raise WorkerDiedError(
                        f"Worker {asked.index(reference)} of {count} ended before its rows did "
                        f"({type(error).__name__}): killed from outside, or out of memory. Nothing "
                        "was written. Start it again; fewer --workers or --rows take less memory."
                    ) from error
            if ended:
                self._grown = time.monotonic()
            else:
                self._look()
                tell(sum(self._done))
                self._check_that_they_live([reference in answers for reference in asked])
        return [answers[reference] for reference in asked]

    def _look(self) -> None:
        """Ask each how far it is, unless it still owes the answer to the question before."""
        for worker, actor in enumerate(self._actors):
            if worker not in self._looks:
                self._looks[worker] = actor.done.remote()
        looks = list(self._looks.values())
        answered, _ = ray.wait(looks, num_returns=len(looks), timeout=LOOK_S)
        before = sum(self._done)
        for worker, reference in list(self._looks.items()):
            if reference not in answered:
                continue
            del self._looks[worker]
            try:
                self._done[worker] = ray.get(reference)
            except RayError:
                continue  # its rows say what happened
            self._heard[worker] = time.monotonic()
        if sum(self._done) != before:
            self._grown = time.monotonic()

    def _check_that_they_live(self, ready: list[bool]) -> None:
        """Raise for a worker that is frozen: it would be waited for without end."""
        now = time.monotonic()
        for worker, heard in enumerate(self._heard):
            if not ready[worker] and min(now - heard, now - self._grown) > SILENT_S:
                raise WorkerDiedError(
                    f"Worker {worker} of {len(self._actors)} has not answered for "
                    f"{now - heard:.0f} s, and nothing was scored meanwhile: it hangs. Nothing was "
                    "written. Start it again."
                )


@contextmanager
def scorers(plan: ScorerPlan, *, workers: int) -> Iterator[Scorers]:
    """Start scorers in the Ray that is there; it must have a core, or a GPU, for each.

    None outlives the `with` block.
    """
    gpus = 1 if plan.device == "cuda" else 0
    # Two calls at a time: one scores, one answers.
    make = ScorerActor.options(num_cpus=1, num_gpus=gpus, max_concurrency=2)
    actors: list[Any] = []
    try:
        actors += [make.remote(plan) for _ in range(workers)]
        yield Scorers(actors)
    finally:
        for actor in actors:
            ray.kill(actor)
        asked = [actor.done.remote() for actor in actors]  # answered when it is gone
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=10)
