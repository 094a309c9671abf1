"""When a run is scored while it trains, and what follows: the best is kept, a stale run ends.

An evaluation falls on steps (evaluate.every), on minutes (evaluate.minutes) and on the last step.
It reads weights and changes none, nor a row, nor a memory: the training goes on as if it had not
been. Where the minutes put one is written down before it begins (evaluations/by_minutes.json), so
that a run which goes on from an older checkpoint is scored at the same steps again.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.files import write_whole
from pipeline.growing import GrowingStore
from pipeline.layout import rows_of_rank
from pipeline.store import Store
from trainer.average import averaged
from trainer.best import scores_in, value_in, value_of
from trainer.board import Reporter
from trainer.catch_up import whole_store
from trainer.consent import Consent
from trainer.counters import Counters, count_evaluation
from trainer.evaluation import Scores, Wanted, scores_of, sum_rows
from trainer.group import Group
from trainer.later import Later
from trainer.ledger import Ledger
from trainer.plan import TrainPlan
from trainer.remote_run import open_run
from trainer.run_folder import BY_MINUTES, RunFolder
from trainer.start import Training, together
from trainer.sums import Sums


class Examiner:
    """Scores one rank's share of the held-out documents, when all ranks do."""

    def __init__(  # noqa: PLR0913 - what it scores with, each once
        self,
        plan: TrainPlan,
        group: Group,
        store: Store | GrowingStore,
        training: Training,
        *,
        attempt: int,
        reporter: Reporter,
        ledger: Ledger,
        consent: Consent,
        tell: Callable[[dict[str, Any]], None],
        later: Later,
        clock: Callable[[], float],
    ) -> None:
        """Score `training` by `plan`; the counters are those of `ledger`, `tell` takes lines.

        Files that the disk refuses are left to `later`.
        """
        self._plan, self._group, self._store, self._training = plan, group, store, training
        self._ledger, self._consent, self._tell, self._clock = ledger, consent, tell, clock
        self._reporter, self._folder = reporter, open_run(plan.folder)
        self._attempt, self._later = attempt, later
        self._found: dict[int, list[Scores]] = {}  # by step, until they are in their file
        self._told = training.step  # the last step whose evaluation may have its line already
        self._began = clock() - training.counters.unscored_s
        here = together(group, lambda: [] if group.rank else self._folder.steps_by_minutes())
        told = group.from_rank_0(json.dumps(here))
        self._by_minutes: set[int] = set(json.loads(told))

    def wants_soon(self) -> bool:
        """Rank 0: whether the minutes are over, so that the next step is followed by a score."""
        minutes, step = self._plan.evaluate.minutes, self._training.step
        if self._group.rank or not minutes or any(due > step for due in self._by_minutes):
            return False
        return self._clock() - self._began >= 60 * minutes

    def plan_next(self) -> None:
        """All ranks: the step that comes now is followed by an evaluation."""
        self._by_minutes.add(self._training.step + 1)
        self._keep_minutes()

    def _put_off(self, step: int) -> None:
        """What the clock wanted at `step` is not to be had: let it want again when it is time."""
        if step in self._by_minutes:
            self._by_minutes.discard(step)
            self._began = self._clock()
            self._keep_minutes()

    def _keep_minutes(self) -> None:
        if self._group.rank == 0:
            name = self._folder.named(str(self._folder.evaluations / BY_MINUTES))
            self._consent.guard(
                lambda: self._later.write(
                    name, lambda: self._owned().keep_steps_by_minutes(self._by_minutes)
                )
            )

    def _owned(self) -> RunFolder:
        """The folder, to write to; an attempt that was overtaken does not get it."""
        self._folder.check_lease(self._attempt)
        return self._folder

    def counters(self) -> Counters:
        """The counters, with the time since the last evaluation, as a checkpoint holds them."""
        seconds = self._clock() - self._began if self._plan.evaluate.minutes else 0.0
        return replace(self._ledger.counters, unscored_s=round(seconds, 3))

    def score_if_due(self, *, last: bool = False) -> bool:
        """Score the held-out documents when it is time; False if told to stop meanwhile.

        `last` says that no step comes after this one, whatever the plan says.
        """
        step, plan = self._training.step, self._plan
        final = last or step >= plan.trainer.steps
        if not (final or self._is_due(step)):
            return True
        store = whole_store(self._store, self._group, self._reporter, wait=final)
        if store is None:  # the held-out documents are still being built, or we are to stop
            self._put_off(step)
            return not final
        if not len(store.doc_ids("validation")):
            return True
        path = self._folder.evaluation(step)
        lengths = self._lengths(final=final)
        rows = plan.evaluate.rows or plan.layout.rows
        segment = plan.evaluate.segment or plan.layout.segment
        settings = {(rows, segment, length) for length in lengths}
        known = self._group.rank == 0 and self._consent.guard(lambda: self._known(path, settings))
        if self._group.from_rank_0("known" if known else "") != "known":
            self._ledger.flush()
            found: list[tuple[Wanted, Sums]] = []
            for length in lengths:
                wanted = Wanted(rows=rows, segment=segment, memory=length)
                sums = self._sum(store, wanted)
                if sums is None:
                    return False
                found.append((wanted, sums))
            if self._group.rank == 0:
                self._consent.guard(lambda: self._keep(path, store, found))
            self._consent.raise_together()
            self._ledger.restart_clock()
            self._began = self._clock()
        self._count()
        return True

    def value_at(self, step: int) -> float | None:
        """Rank 0: what the evaluation of `step` found by evaluate.metric, if it was scored."""
        metric, memory = self._plan.evaluate.metric, self._plan.model.memory
        if found := self._found.get(step):
            return value_in(found, metric=metric, memory=memory)
        return value_of(self._folder.evaluation(step), metric=metric, memory=memory)

    def is_best(self) -> bool:
        """Whether this step was scored and is the best so far."""
        counters = self._ledger.counters
        return counters.best_step == counters.scored == self._training.step > 0

    def is_over(self) -> bool:
        """Whether the run has become no better for as many evaluations as it has patience."""
        patience = self._plan.evaluate.patience
        return 0 < patience <= self._ledger.counters.stale

    def _is_due(self, step: int) -> bool:
        every = self._plan.evaluate.every
        return step > 0 and ((every > 0 and step % every == 0) or step in self._by_minutes)

    def _count(self) -> None:
        """Take the evaluation of this step into the counters, on all ranks alike."""
        metric, found = self._plan.evaluate.metric, None
        if self._group.rank == 0:  # it wrote the file: another node may not see it yet
            found = self._consent.guard(lambda: self.value_at(self._training.step))
        value = json.loads(self._group.from_rank_0(json.dumps(found)))
        if value is not None:
            self._ledger.counters = count_evaluation(
                self._ledger.counters, step=self._training.step, metric=metric, value=value
            )

    def _lengths(self, *, final: bool) -> tuple[int, ...]:
        """Memory lengths to score with: at the end those wanted, else that of training."""
        model = self._plan.model
        if not final:
            return (model.memory,)
        # Under same_length a query sees `memory` keys, its own included: with 0 it would see none.
        without = () if model.same_length else (0,)
        return self._plan.evaluate.memory or tuple(dict.fromkeys((model.memory, *without)))

    def _known(self, path: Path, settings: set[tuple[int, int, int]]) -> bool:
        """Whether the scores with these (rows, segment, memory) are written, and told in a line."""
        step = self._training.step
        if not path.exists() or not any(
            line["kind"] == "evaluation" and line["step"] == step for line in self._folder.lines()
        ):
            return False
        return settings <= {(one.rows, one.segment, one.memory) for one in scores_in(path)}

    def _sum(self, store: Store, wanted: Wanted) -> Sums | None:
        """What all ranks found with one memory length; None if somebody wants to stop.

        Raises:
            DoomedError: A rank met an error that would come again.
        """
        training, consent, group = self._training, self._consent, self._group
        mine = rows_of_rank(wanted.rows, rank=group.rank, world_size=group.world_size)
        left = False

        def leave() -> bool:
            nonlocal left
            left = consent.asked_to_stop()
            return left

        def act() -> Sums | None:
            with averaged(training.model, training.average):
                return sum_rows(training.model, store, wanted, mine=mine, should_stop=leave)

        sums = consent.guard(act)
        # One vote after the last batch, and none after one that said to leave: so a rank that met
        # an error gives the vote in which the others learn it, be it at their next batch or here.
        if left or leave() or sums is None:
            consent.raise_together()
            return None
        group.sum_on_host(sums.nats)
        group.sum_on_host(sums.targets)
        return sums

    def _keep(self, path: Path, store: Store, found: list[tuple[Wanted, Sums]]) -> None:
        """Rank 0: write and tell what was found at this step."""
        training = self._training
        clamp = training.model.config.clamp_len
        scores = [
            scores_of(sums, store, wanted, step=training.step, clamp=clamp)
            for wanted, sums in found
        ]
        folder = self._owned()
        if self._told == training.step:  # looks through all lines
            folder.drop_evaluation(training.step)
        self._told = training.step
        self._found[training.step] = scores
        self._later.write(
            self._folder.named(str(path)), lambda: self._write(path, scores, training.step)
        )
        self._tell(evaluation_line(scores, training_memory=self._plan.model.memory))

    def _write(self, path: Path, scores: list[Scores], step: int) -> None:
        self._owned()
        text = json.dumps([score.to_json() for score in scores], indent=1)
        write_whole(str(path), text.encode())
        self._folder.put_up(path)
        self._found.pop(step, None)


def evaluation_line(scores: list[Scores], *, training_memory: int) -> dict[str, Any]:
    """An evaluation as a metric line: eval/... is that of the training memory."""
    line: dict[str, Any] = {"kind": "evaluation", "step": scores[0].step}
    for score in scores:
        group = "eval" if score.memory == training_memory else f"eval/memory_{score.memory}"
        line[f"{group}/loss"] = score.loss
        line[f"{group}/perplexity"] = score.perplexity
        line[f"{group}/bits_per_byte"] = score.bits_per_byte
    return line
