"""The story of a run, as each rank lives it: agree, read, step, tell, save, score.

A batch comes from the client (pipeline/client.py), becomes tensors here and nowhere else, passes
the model, and the state after it goes into the next checkpoint together with the memory.
"""

import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from pipeline.batch import Batch
from pipeline.client import Reader, RowClient
from pipeline.files import write_whole
from pipeline.growing import GrowingStore
from pipeline.growing_server import serve
from pipeline.layout import check_shares, rows_of_rank
from pipeline.rows_state import RowsState
from pipeline.store import Store
from trainer.anchors import anchor_is_due, keep_anchor
from trainer.board import Reporter, Verdict
from trainer.catch_up import catch_up, whole_store
from trainer.checkpoint import STATE_VERSION, checkpoint_name, take_snapshot
from trainer.documents import open_store, parts_of
from trainer.evaluation import Scores, evaluate
from trainer.group import Group, Vote
from trainer.ledger import Entry, Ledger
from trainer.optimizer import learning_rate
from trainer.plan import TrainPlan
from trainer.run_folder import Attempt, RunFolder
from trainer.saver import Saver
from trainer.start import (
    REPEATABLE,
    DoomedError,
    Training,
    begin_attempt,
    describe,
    restore,
    settle_buckets,
    together,
)
from trainer.step import Rows, StepPlan, take_step

T = TypeVar("T")
OpenReader = Callable[[tuple[int, int]], Reader | None]
WAIT_S = 0.05
SKIPS_IN_ROW = 3


def train(plan: TrainPlan, group: Group, reporter: Reporter, open_reader: OpenReader) -> Verdict:
    """Take part in the run of `plan` as one of the ranks of `group`, to its end or a stop.

    Args:
        plan: The run.
        group: The ranks.
        reporter: The way to the driver.
        open_reader: Opens the reader that serves the given rows, or None to read them here.

    Returns:
        The same verdict on every rank.

    Raises:
        Exception: What another attempt may not meet again: a rank died, the disk refused.
    """
    try:
        store = together(group, lambda: open_store(plan))
        mine = together(group, lambda: share_of_rows(plan, group))
        attempt, checkpoint = begin_attempt(plan, group, reporter)
        if not catch_up(store, checkpoint, group, reporter):
            return Verdict(status="stopped", reason=reporter.stop_reason(), step=attempt.start_step)
        torch.set_num_threads(attempt.threads)
        if plan.trainer.deterministic:
            torch.use_deterministic_algorithms(mode=True)
        training = together(
            group,
            lambda: restore(plan, group, store, attempt=attempt, checkpoint=checkpoint, mine=mine),
        )
        rank = _Rank(plan, group, reporter, store, training, attempt, mine, open_reader(mine))
        try:
            return rank.run()
        finally:
            rank.close()
    except DoomedError as doom:
        return Verdict(status="failed", kind=doom.kind, reason=doom.reason)


def share_of_rows(plan: TrainPlan, group: Group) -> tuple[int, int]:
    """This rank's rows.

    Raises:
        RowsError: They cannot be shared out evenly.
    """
    rows, world_size = plan.layout.rows, group.world_size
    check_shares(rows, world_size=world_size, accumulation=plan.trainer.accumulation)
    check_shares(plan.evaluate.rows or rows, world_size=world_size)
    return rows_of_rank(rows, rank=group.rank, world_size=world_size)


class _Rank:
    """One rank between its start and its verdict."""

    def __init__(
        self,
        plan: TrainPlan,
        group: Group,
        reporter: Reporter,
        store: Store | GrowingStore,
        training: Training,
        attempt: Attempt,
        mine: tuple[int, int],
        reader: Reader | None,
    ) -> None:
        self._plan, self._group, self._reporter = plan, group, reporter
        self._store, self._training, self._attempt, self._mine = store, training, attempt, mine
        self._folder = RunFolder(plan.folder)
        goes_on = attempt.resumed_from and not training.resharded
        self._saved = self._told = training.step if goes_on else -1
        self._server = serve(store, plan.layout)
        self._client = RowClient(
            self._server,
            reader=reader,
            state=training.rows,
            rows=mine,
            warn=reporter.note,
        )
        self._ledger = Ledger(group, training.counters, write=self._tell, note=reporter.note)
        self._saver = Saver(
            self._folder,
            attempt=attempt.number,
            rank=group.rank,
            world_size=group.world_size,
            keep_last=plan.checkpoint.keep_last,
            beat=reporter.beat,
        )
        self._numbers = torch.arange(mine[0], mine[1], device=group.device)
        self._error: str | None = None
        self._steps = StepPlan(
            accumulation=plan.trainer.accumulation,
            clip=plan.optimizer.clip,
            precision=plan.trainer.precision,
            seed=plan.seed,
            world_size=group.world_size,
        )

    def run(self) -> Verdict:
        """Step until the run is done or somebody wants to stop."""
        training, plan = self._training, self._plan
        self._tell_start()
        self._guard(self._keep_anchor)
        if training.resharded:
            self._save_and_wait()  # the next attempt goes on with the new rows
        settle_buckets(training, self._steps, shape=(len(self._numbers), plan.layout.segment))
        self._ledger.restart_clock()
        while True:
            if not self._evaluate_if_due():
                return self._stop()
            if training.step >= plan.trainer.steps:
                self._save_and_wait()
                return Verdict(status="done", step=training.step)
            waited_s = self._client.waited_s
            read = self._await_batch()
            if read is None:
                return self._stop()
            batch, after, targets = read
            rate = learning_rate(training.step, plan.optimizer, steps=plan.trainer.steps)
            result, training.memory = take_step(
                training.objective,
                training.optimizer,
                self._tensors(batch),
                training.memory,
                plan=self._steps,
                step=training.step,
                targets=targets,
                rate=rate,
            )
            training.step, training.rows = training.step + 1, after
            self._ledger.add(
                Entry(
                    step=training.step,
                    result=result,
                    batch=batch,
                    rows=after,
                    targets=targets,
                    rate=rate,
                    waited_s=self._client.waited_s - waited_s,
                )
            )
            if anchor_is_due(training.step):
                self._guard(self._keep_anchor)
            self._save_if_due()

    def close(self) -> None:
        """Leave no actor, no thread and no half-written file behind."""
        self._client.close()
        self._saver.close()

    def _keep_anchor(self) -> None:
        """Rank 0: write down where the rows stand, for whoever looks at this step again."""
        if self._group.rank == 0:
            self._folder.check_lease(self._attempt.number)
            keep_anchor(self._folder, self._plan, self._training.rows)

    def _await_batch(self) -> tuple[Batch, RowsState, int] | None:
        """The next batch, once all ranks have theirs, and their targets together; None to stop."""
        read: tuple[Batch, RowsState] | None = None
        while True:
            if read is None and self._guard(self._client.ready):
                read = self._guard(self._client.next)
            said = self._group.vote(
                Vote(
                    stop=bool(self._reporter.stop_reason()),
                    waiting=read is None,
                    failed=self._error is not None,
                    targets=int((read[0].targets >= 0).sum()) if read else 0,
                )
            )
            if said.failed:
                self._raise_together()
            if said.stop:
                return None
            if read and not said.waiting:
                return *read, said.targets
            self._reporter.beat()
            time.sleep(WAIT_S)

    def _guard(self, act: Callable[[], T]) -> T | None:
        """Do `act`; an error that would repeat is kept for the next vote, where all ranks learn it.

        To raise it here would leave the other ranks waiting for this one.
        """
        try:
            return act()
        except tuple(REPEATABLE) as error:
            self._error = self._error or describe(error)
            return None

    def _raise_together(self) -> None:
        """Raise, on all ranks, the error that the lowest of them keeps; nothing if none does."""
        first = self._group.first_error(self._error)
        if first is not None:
            raise DoomedError(*json.loads(first))

    def _tensors(self, batch: Batch) -> Rows:
        """The batch on the device."""
        device = self._group.device
        tokens, targets, offset = (
            torch.from_numpy(array.astype("int64")).to(device, non_blocking=True)
            for array in (batch.tokens, batch.targets, batch.offset)
        )
        return Rows(tokens=tokens, targets=targets, offset=offset, numbers=self._numbers)

    def _save_if_due(self) -> None:
        step, plan = self._training.step, self._plan
        self._guard(self._tell_saved)
        if self._ledger.counters.skipped_in_row >= SKIPS_IN_ROW:
            self._save_and_wait()
            raise DoomedError(
                "error",
                f"{SKIPS_IN_ROW} updates in a row were not finite, up to step "
                f"{self._ledger.last_skipped}. None of them entered the weights, which are in the "
                f"checkpoint of step {step}. Lower optimizer.learning_rate, or look at the "
                "documents named above.",
            )
        if step % plan.checkpoint.every == 0 or step == plan.trainer.steps:
            self._guard(self._save)

    def _save_and_wait(self) -> None:
        """Have this step in a committed checkpoint, or the same error on all ranks."""
        self._guard(self._save)
        self._guard(self._saver.wait)
        self._guard(self._tell_saved)
        self._raise_together()

    def _save(self) -> None:
        training = self._training
        if self._saved == training.step:
            return
        self._ledger.flush()
        if self._group.rank == 0:
            self._folder.sync_lines()
        state = self._state() if self._group.rank == 0 else None
        self._saver.start(
            take_snapshot(
                training.model,
                training.optimizer,
                training.memory,
                step=training.step,
                rank=self._group.rank,
                rows=self._mine,
                state=state,
            )
        )
        self._saved = training.step

    def _state(self) -> Callable[[], dict[str, Any]]:
        """What a resume must know beside the tensors; worked out by the saving thread."""
        rows, plan, server = self._training.rows, self._plan, self._server
        store = self._store
        now = {
            "version": STATE_VERSION,
            "step": self._training.step,
            "attempt": self._attempt.number,
            "world_size": self._group.world_size,
            "threads": self._attempt.threads,
            "counters": asdict(self._ledger.counters),
            "identity": plan.identity(),
            "plan": asdict(plan),
            "mlflow_run_id": plan.mlflow_run_id,
            "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
        }
        return lambda: (
            now
            | {
                "rows": rows.to_json(),
                "next_batch": server.digest_of_next(rows),  # first: the parts it needs are counted
                **parts_of(store),
            }
        )

    def _stop(self) -> Verdict:
        """Save where we are, and say why we stop: one rank may have heard of it before others."""
        self._save_and_wait()
        reasons = self._group.gather(self._reporter.stop_reason())
        reason = next((said for said in reasons if said), "")
        return Verdict(status="stopped", reason=reason, step=self._training.step)

    def _evaluate_if_due(self) -> bool:
        """Score the held-out documents when it is time; False if told to stop meanwhile."""
        step, plan = self._training.step, self._plan
        final = step >= plan.trainer.steps
        every = plan.evaluate.every
        if not final and (step == 0 or every == 0 or step % every):
            return True
        store = whole_store(self._store, self._group, self._reporter, wait=final)
        if store is None:
            return not final  # the held-out documents are still being built, or we are to stop
        path = self._folder.evaluations / f"step_{step:08d}.json"
        lengths = self._lengths(final=final)
        rows = plan.evaluate.rows or plan.layout.rows
        segment = plan.evaluate.segment or plan.layout.segment
        settings = {(rows, segment, length) for length in lengths}
        known = self._group.rank == 0 and self._known(path, settings)
        known = self._group.from_rank_0("yes" if known else "no") == "yes"
        if known or not len(store.doc_ids("validation")):
            return True
        self._ledger.flush()
        scores: list[Scores] = []
        for length in lengths:
            found = self._evaluate(store, rows=rows, segment=segment, memory=length)
            if found is None:
                return False
            scores.append(found)
        if self._group.rank == 0:
            self._folder.drop_evaluation(step)
            write_scores(path, scores)
            self._tell(evaluation_line(scores, training_memory=plan.model.memory))
        self._ledger.restart_clock()
        return True

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
        saved = json.loads(path.read_text(encoding="utf-8"))
        return settings <= {(one["rows"], one["segment"], one["memory"]) for one in saved}

    def _evaluate(self, store: Store, *, rows: int, segment: int, memory: int) -> Scores | None:
        """Scores with one memory length; None if somebody wants to stop."""
        try:
            found = evaluate(
                self._training.model,
                store,
                self._group,
                step=self._training.step,
                rows=rows,
                segment=segment,
                memory=memory,
                should_stop=self._asked_to_stop,
            )
        except tuple(REPEATABLE) as error:
            self._error = self._error or describe(error)
            self._asked_to_stop()  # the vote in which the others learn it, at their next batch
            found = None
        if found is None:
            self._raise_together()
        return found

    def _asked_to_stop(self) -> bool:
        self._reporter.beat()
        mine = Vote(stop=bool(self._reporter.stop_reason()), failed=self._error is not None)
        said = self._group.vote(mine)
        return said.stop > 0 or said.failed > 0

    def _tell(self, line: dict[str, Any]) -> None:
        """Rank 0: write a line, unless a later attempt owns the run: then all stop."""
        self._guard(lambda: self._write(line))

    def _write(self, line: dict[str, Any]) -> None:
        """A line into metrics.jsonl, then to the driver."""
        self._folder.check_lease(self._attempt.number)
        line = finite(line) | {"attempt": self._attempt.number}
        with self._folder.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        self._reporter.line(line)

    def _tell_saved(self) -> None:
        self._saver.poll()
        step = self._saver.committed
        if step > self._told and self._group.rank == 0:
            name = checkpoint_name(step, self._attempt.number)
            self._reporter.line({"kind": "checkpoint", "step": step, "checkpoint": name})
        self._told = max(self._told, step)

    def _tell_start(self) -> None:
        if self._group.rank != 0:
            return
        model, attempt = self._training.model, self._attempt
        weights = sum(parameter.numel() for parameter in model.parameters())
        whence = f"from {attempt.resumed_from}" if attempt.resumed_from else "from step 0"
        self._reporter.note(
            f"Attempt {attempt.number} {whence}: {self._group.world_size} workers of "
            f"{attempt.threads} threads on {self._group.device.type}, {weights:,} weights, "
            f"attention {model.backend}, precision {self._plan.trainer.precision}."
        )
        if self._training.resharded:
            self._reporter.note(self._training.resharded)
        if self._training.inexact:
            self._reporter.note(
                f"Losses will agree with those before up to the order of float sums, not bit for "
                f"bit: {self._training.inexact}."
            )


def finite(line: dict[str, Any]) -> dict[str, Any]:
    """A line with null where JSON has no number: the loss of a step that was skipped."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in line.items()
    }


def write_scores(path: Path, scores: list[Scores]) -> None:
    """Write an evaluation's scores to `path`, whole."""
    text = json.dumps([score.to_json() for score in scores], indent=1)
    write_whole(str(path), text.encode())


def evaluation_line(scores: list[Scores], *, training_memory: int) -> dict[str, Any]:
    """An evaluation as a metric line: eval/... is that of the training memory."""
    line: dict[str, Any] = {"kind": "evaluation", "step": scores[0].step}
    for score in scores:
        group = "eval" if score.memory == training_memory else f"eval/memory_{score.memory}"
        line[f"{group}/loss"] = score.loss
        line[f"{group}/perplexity"] = score.perplexity
        line[f"{group}/bits_per_byte"] = score.bits_per_byte
    return line
