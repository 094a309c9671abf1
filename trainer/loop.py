"""The story of a run, as each rank lives it: agree, read, step, tell, save, score.

A batch comes from the client (pipeline/client.py), becomes tensors here and nowhere else, passes
the model, and the state after it goes into the next checkpoint together with the memory.
"""

import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from pipeline.batch import Batch
from pipeline.client import Reader, RowClient
from pipeline.growing import GrowingStore
from pipeline.growing_server import serve
from pipeline.layout import check_shares, rows_of_rank
from pipeline.rows_state import RowsState
from pipeline.store import Store
from trainer.anchors import anchor_file, anchor_is_due, keep_anchor
from trainer.average import move_average
from trainer.board import Reporter, Verdict
from trainer.catch_up import catch_up
from trainer.checkpoint import STATE_VERSION, checkpoint_name
from trainer.consent import Consent
from trainer.counters import SKIPS_IN_ROW
from trainer.documents import open_store, parts_of
from trainer.examiner import Examiner
from trainer.group import Group
from trainer.heap import keep_heap
from trainer.later import Later
from trainer.ledger import Entry, Ledger
from trainer.metric_lines import MetricLines
from trainer.optimizer import learning_rate
from trainer.plan import TrainPlan
from trainer.profiler import StepProfiler
from trainer.remote_run import open_run
from trainer.run_folder import Attempt
from trainer.saver import RETRY_S, Saver
from trainer.snapshot import take_snapshot
from trainer.start import (
    DoomedError,
    Training,
    begin_attempt,
    restore,
    settle_buckets,
    together,
)
from trainer.step import Rows, StepPlan, take_step
from trainer.usage import usage_meter

OpenReader = Callable[[tuple[int, int]], Reader | None]
WAIT_S = 0.05


def train(
    plan: TrainPlan,
    group: Group,
    reporter: Reporter,
    open_reader: OpenReader,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Verdict:
    """Take part in the run of `plan` as one of the ranks of `group`, to its end or a stop.

    Args:
        plan: The run.
        group: The ranks.
        reporter: The way to the driver.
        open_reader: Opens the reader that serves the given rows, or None to read them here.
        clock: Seconds, for evaluate.minutes.

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
        keep_heap()
        if plan.trainer.deterministic:
            torch.use_deterministic_algorithms(mode=True)
        training = together(
            group,
            lambda: restore(plan, group, store, attempt=attempt, checkpoint=checkpoint, mine=mine),
        )
        if checkpoint is not None:
            open_run(plan.folder).let_go(checkpoint)
        ranks: list[_Rank] = []  # this one, once it is built
        try:
            together(
                group,
                lambda: ranks.append(
                    _Rank(plan, group, reporter, store, training, attempt, mine, open_reader, clock)
                ),
            )
            return ranks[0].run()
        finally:
            for rank in ranks:
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

    def __init__(  # noqa: PLR0913 - what a rank is made of, each once
        self,
        plan: TrainPlan,
        group: Group,
        reporter: Reporter,
        store: Store | GrowingStore,
        training: Training,
        attempt: Attempt,
        mine: tuple[int, int],
        open_reader: OpenReader,
        clock: Callable[[], float],
    ) -> None:
        self._plan, self._group, self._reporter = plan, group, reporter
        self._store, self._training, self._attempt, self._mine = store, training, attempt, mine
        self._folder = open_run(plan.folder)
        goes_on = attempt.resumed_from and not training.resharded
        self._saved = training.step if goes_on else -1
        self._over = False
        self._lines = MetricLines(self._folder, attempt=attempt.number, reporter=reporter)
        self._consent = Consent(group, reporter)
        self._later = Later(reporter.note)
        self._ledger = Ledger(
            group,
            training.counters,
            first_row=mine[0],
            write=self._tell,
            note=reporter.note,
            usage=usage_meter(plan, group.device, world_size=group.world_size),
        )
        self._profiler = StepProfiler(
            self._folder.profile,
            attempt=attempt.number,
            rank=group.rank,
            steps=plan.trainer.profile,
        )
        self._examiner = Examiner(
            plan,
            group,
            store,
            training,
            attempt=attempt.number,
            reporter=reporter,
            ledger=self._ledger,
            consent=self._consent,
            tell=self._tell,
            later=self._later,
            clock=clock,
        )
        self._server = serve(store, plan.layout)
        self._client = RowClient(  # late: what fails before it leaves no reader open
            self._server,
            reader=open_reader(mine),
            state=training.rows,
            rows=mine,
            warn=reporter.note,
        )
        self._saver = Saver(
            self._folder,
            attempt=attempt.number,
            rank=group.rank,
            world_size=group.world_size,
            settings=plan.checkpoint,
            patience_s=plan.cluster.hang_timeout_s,
            value_of=self._examiner.value_at,
            beat=reporter.beat,
            note=reporter.note,
        )
        self._numbers = torch.arange(mine[0], mine[1], device=group.device)
        counters = training.counters
        self._seen = torch.tensor(
            [counters.norm_mean, counters.norm_count], dtype=torch.float64, device=group.device
        )
        self._steps = StepPlan(
            accumulation=plan.trainer.accumulation,
            clip=plan.optimizer.clip,
            precision=plan.trainer.precision,
            seed=plan.seed,
            world_size=group.world_size,
            spike_factor=plan.trainer.spike_factor,
        )

    def run(self) -> Verdict:
        """Step until the run is done or somebody wants to stop."""
        training, plan = self._training, self._plan
        self._tell_start()
        self._consent.guard(self._keep_anchor)
        if training.resharded:
            self._save_and_wait()  # the next attempt goes on with the new rows
        settle_buckets(training, self._steps, shape=(len(self._numbers), plan.layout.segment))
        self._ledger.restart_clock()
        while True:
            if not (self._examiner.score_if_due() and self._score_if_over()):
                return self._stop()
            if self._examiner.is_best() and plan.checkpoint.keep_best:
                self._save()
            if self._over or training.step >= plan.trainer.steps:
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
                seen=self._seen,
            )
            self._seen = result.seen
            if training.average:
                move_average(training.average, training.model, decay=plan.trainer.average)
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
            self._trace(self._profiler.step)
            if anchor_is_due(training.step):
                self._consent.guard(self._keep_anchor)
            self._save_if_due()

    def close(self) -> None:
        """Leave no actor, no thread and no half-written file behind."""
        self._client.close()
        self._saver.close()
        self._trace(self._profiler.close)
        self._later.close()
        if self._group.rank == 0:
            self._folder.end_lines(self._attempt.number)

    def _trace(self, written: Callable[[], bool]) -> None:
        """Tell where the trace of steps is, if it is `written` now."""
        try:
            if not written():
                return
            self._folder.put_up(self._profiler.file)
        except OSError as error:  # a trace is not worth an attempt
            self._reporter.note(f"The trace could not be kept ({error}).")
        else:
            where = self._folder.named(str(self._profiler.file))
            self._reporter.note(f"A trace of steps is in {where}.")

    def _keep_anchor(self) -> None:
        """Rank 0: write down where the rows stand, for whoever looks at this step again."""
        if self._group.rank != 0:
            return
        rows = self._training.rows

        def act() -> None:
            self._folder.check_lease(self._attempt.number)
            keep_anchor(self._folder, self._plan, rows)

        place = anchor_file(self._folder, rows.step)
        self._later.write(self._folder.named(str(place)), act)

    def _await_batch(self) -> tuple[Batch, RowsState, int] | None:
        """The next batch, once all ranks have theirs, and their targets together; None to stop."""
        read: tuple[Batch, RowsState] | None = None
        while True:
            if read is None and self._consent.guard(self._client.ready):
                read = self._consent.guard(self._client.next)
            said = self._consent.vote(
                waiting=read is None,
                score=self._examiner.wants_soon(),
                targets=int((read[0].targets >= 0).sum()) if read else 0,
            )
            if said.failed:
                self._consent.raise_together()
            if said.stop:
                return None
            if read and not said.waiting:
                if said.score:
                    self._examiner.plan_next()
                return *read, said.targets
            self._reporter.beat()
            time.sleep(WAIT_S)

    def _tensors(self, batch: Batch) -> Rows:
        """The batch on the device; a GPU copies it while it still works on the step before."""
        device = self._group.device
        host = (
            torch.from_numpy(array.astype("int64", copy=False))
            for array in (batch.tokens, batch.targets, batch.offset)
        )
        if device.type == "cuda":
            host = (tensor.pin_memory() for tensor in host)  # else the copy would wait
        tokens, targets, offset = (tensor.to(device, non_blocking=True) for tensor in host)
        return Rows(tokens=tokens, targets=targets, offset=offset, numbers=self._numbers)

    def _save_if_due(self) -> None:
        step, plan = self._training.step, self._plan
        self._consent.guard(self._tell_saved)
        if self._ledger.counters.skipped_in_row >= SKIPS_IN_ROW:
            self._save_and_wait()
            raise DoomedError(
                "error",
                f"{SKIPS_IN_ROW} updates in a row were not finite or spikes, up to step "
                f"{self._ledger.last_skipped}. None of them entered the weights, which are in the "
                f"checkpoint of step {step}. Lower optimizer.learning_rate, or look at the "
                "documents named above.",
            )
        if step % plan.checkpoint.every == 0 or step == plan.trainer.steps:
            self._save()

    def _save_and_wait(self) -> None:
        """Have this step in a committed checkpoint, or the same error on all ranks."""
        self._save()
        self._await_saver()
        self._consent.guard(self._tell_saved)
        if self._group.rank == 0:
            self._consent.guard(self._later.again)
        self._await_lines()
        self._consent.raise_together()

    def _await_lines(self) -> None:
        """All ranks: until rank 0's lines are on the disk, which is asked as often as for a save.

        Raises:
            OSError: It refuses all the same.
        """
        done, due = self._group.rank != 0, 0.0
        left, pause_s = self._plan.checkpoint.retries, RETRY_S
        while True:
            if not done and time.monotonic() >= due:
                try:
                    self._consent.guard(lambda: self._lines.flush(sync=True))
                    done = True
                except OSError as error:
                    if not left:
                        raise
                    self._reporter.note(
                        f"The last lines of {self._folder.named(str(self._folder.metrics))} cannot "
                        f"be written ({error}). It is tried again in {pause_s:.0f} s."
                    )
                    due, left, pause_s = time.monotonic() + pause_s, left - 1, 2 * pause_s
            if not self._consent.vote(waiting=not done).waiting:
                return
            self._reporter.beat()
            time.sleep(WAIT_S)

    def _await_saver(self) -> None:
        """All ranks: until none writes any more; voting, for a save may take longer than a hang."""
        while self._consent.vote(waiting=not self._saver.done).waiting:
            self._reporter.beat()
            time.sleep(WAIT_S)

    def _save(self) -> None:
        """All ranks: begin to save this step, once the save before it has ended."""
        if self._saved == self._training.step:
            return
        self._saved = self._training.step
        self._await_saver()
        self._consent.guard(self._begin_save)

    def _begin_save(self) -> None:
        training = self._training
        self._ledger.flush()
        self._tell_saved()
        self._later.again()
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
                average=training.average,
            )
        )

    def _state(self) -> Callable[[], dict[str, Any]]:
        """What a resume must know beside the tensors; worked out by the saving thread."""
        rows, plan, server = self._training.rows, self._plan, self._server
        store, lines = self._store, self._lines
        now = {
            "version": STATE_VERSION,
            "step": self._training.step,
            "attempt": self._attempt.number,
            "world_size": self._group.world_size,
            "threads": self._attempt.threads,
            "attention": self._training.model.backend,
            "counters": asdict(self._examiner.counters()),
            "identity": plan.identity(),
            "plan": asdict(plan),
            "mlflow_run_id": plan.mlflow_run_id,
            "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
        }

        def written() -> dict[str, Any]:
            lines.flush(sync=True)  # no checkpoint without the lines up to it
            return now

        return lambda: (
            written()
            | {
                "rows": rows.to_json(),
                "next_batch": server.digest_of_next(rows),  # first: the parts it needs are counted
                **parts_of(store, rows),
            }
        )

    def _stop(self) -> Verdict:
        """Save where we are, and say why we stop: one rank may have heard of it before others."""
        self._save_and_wait()
        reasons = self._group.gather(self._reporter.stop_reason())
        reason = next((said for said in reasons if said), "")
        return Verdict(status="stopped", reason=reason, step=self._training.step)

    def _score_if_over(self) -> bool:
        """Give a run that ends early the scores of the last step; False if told to stop."""
        self._over = self._training.step < self._plan.trainer.steps and self._is_over()
        return not self._over or self._examiner.score_if_due(last=True)

    def _is_over(self) -> bool:
        if not self._examiner.is_over():
            return False
        counters = self._ledger.counters
        if self._group.rank == 0:
            self._reporter.note(
                f"{counters.metric} has not been lower in {counters.stale} evaluations than the "
                f"{counters.best} of step {counters.best_step} (evaluate.patience): the run ends."
            )
        return True

    def _tell(self, line: dict[str, Any]) -> None:
        """Rank 0: write a line, unless a later attempt owns the run: then all stop."""
        self._consent.guard(lambda: self._lines.write(line))

    def _tell_saved(self) -> None:
        self._saver.poll()
        while self._saver.committed:
            step = self._saver.committed.popleft()
            if self._group.rank == 0:
                name = checkpoint_name(step, self._attempt.number)
                self._reporter.line({"kind": "checkpoint", "step": step, "checkpoint": name})

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
        if self._training.attention:
            self._reporter.note(self._training.attention)
        if self._training.resharded:
            self._reporter.note(self._training.resharded)
        if self._training.inexact:
            self._reporter.note(
                f"Losses will agree with those before up to the order of float sums, not bit for "
                f"bit: {self._training.inexact}."
            )
