"""How an attempt begins: the ranks agree on where to go on, and each brings itself there."""

import inspect
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.backends import settle
from model.config import ModelError
from model.memory import Memory, empty_memory
from model.transformer_xl import TransformerXL
from pipeline.errors import DataError
from pipeline.growing import GrowingStore
from pipeline.growing_server import serve
from pipeline.layout import Layout, RowsError
from pipeline.reshard import reshard
from pipeline.rows_state import RowsState
from pipeline.server import Server
from pipeline.store import Store
from trainer.average import begin_average
from trainer.board import Reporter
from trainer.checkpoint import (
    CheckpointError,
    drop_unfinished,
    living,
    load_average,
    load_memory,
    load_optimizer,
    load_weights,
    newest_of,
    read_state,
    step_of,
)
from trainer.counters import SKIPS_IN_ROW, Counters
from trainer.documents import check_parts
from trainer.errors import ConfigError, DivergedError, OvertakenError
from trainer.group import Group, Vote
from trainer.load import initial_weights
from trainer.optimizer import make_optimizer
from trainer.plan import TrainPlan, check_identity
from trainer.remote_run import open_run
from trainer.run_folder import CHECKPOINTS, Attempt, RunFolder
from trainer.step import Objective, Rows, StepPlan, backward

T = TypeVar("T")
WAIT_S = 0.05


# Errors that the next attempt would meet again, and the kind that decides the exit code.
REPEATABLE: dict[type[Exception], str] = {
    DivergedError: "error",
    OvertakenError: "overtaken",  # before its family, ConfigError
    DataError: "data",
    ConfigError: "config",
    ModelError: "config",
    RowsError: "config",
}


class DoomedError(Exception):
    """An error that another attempt would meet again, known to all ranks."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason


def describe(error: Exception) -> str:
    """A repeatable error as a string that travels between ranks."""
    kind = next(kind for cls, kind in REPEATABLE.items() if isinstance(error, cls))
    return json.dumps([kind, str(error)])


def together(group: Group, act: Callable[[], T]) -> T:
    """Do `act` on every rank; if it fails on one, fail on all.

    Raises:
        DoomedError: On every rank, with the error of the lowest rank that met one for good.
        Exception: The rank's own error where another attempt may not meet it again; on the other
            ranks, that a rank failed.
    """
    said = None
    own: Exception | None = None
    result: list[T] = []
    try:
        result.append(act())
    except tuple(REPEATABLE) as error:
        said = describe(error)
    except Exception as error:  # noqa: BLE001 - raised below, when the other ranks know
        own, said = error, json.dumps(["", f"{type(error).__name__}: {error}"])
    first = group.first_error(said)
    if own is not None:
        raise own
    if first is not None:
        kind, reason = json.loads(first)
        if not kind:
            raise RuntimeError(f"Another rank failed: {reason}")
        raise DoomedError(kind, reason)
    return result[0]


@dataclass(slots=True, kw_only=True)
class Training:
    """A rank in the middle of a run: all that changes from step to step."""

    step: int
    model: TransformerXL
    objective: nn.Module
    optimizer: torch.optim.AdamW
    memory: Memory
    rows: RowsState
    counters: Counters
    attention: str = ""  # why the model attends in another way than it was told to, if it does
    resharded: str = ""  # what became of the rows, where they were dealt anew
    average: list[Tensor]  # of the weights, in their order; empty where none is kept
    inexact: str = ""  # why this attempt will not repeat every bit, if it will not


def begin_attempt(plan: TrainPlan, group: Group, reporter: Reporter) -> tuple[Attempt, Path | None]:
    """Take the run over: number this attempt and find the checkpoint to go on from.

    Rank 0 decides and tells the others.

    Raises:
        DoomedError: The run folder is not shared, or another process takes it at this moment.
    """
    folder = open_run(plan.folder)
    launch = group.from_rank_0(plan.launch)  # under torchrun every rank is a driver of its own
    probe = f".seen-{launch}-{group.rank}"
    together(group, lambda: _write_probe(folder, probe))

    number = 0  # rank 0: once it is taken

    def pick() -> tuple[Path | None, list[str]]:
        if group.rank != 0:
            return None, []
        _check_shared(folder, launch, group.world_size)
        folder.refresh()
        others = [attempt for attempt in folder.attempts() if attempt.number != number]
        return _newest_of_now(folder, others)

    def take(picked: Future[tuple[Path | None, list[str]]]) -> str:
        """Rank 0: the attempt; empty if the run before it has removed what was picked."""
        nonlocal number
        if group.rank != 0:
            return ""
        checkpoint, passed = picked.result()
        if _is_gone(folder, checkpoint):
            return ""
        for fault in passed:
            reporter.note(f"A checkpoint was passed over and left in place: {fault}.")
        start_step = step_of(checkpoint) if checkpoint else 0
        attempt = Attempt(
            number=number or folder.next_attempt(),
            launch=launch,
            start_step=start_step,
            world_size=group.world_size,
            threads=_threads(plan, group, checkpoint),
            resumed_from=checkpoint.name if checkpoint else "",
        )
        if number:  # taken already, with a checkpoint that is gone: write down the other one
            folder.check_lease(number)
            folder.write_json(f"attempts/{number:04d}.json", asdict(attempt))
        else:
            _begin(folder, attempt)
            number = attempt.number
        if _is_gone(folder, checkpoint):
            return ""
        folder.sweep(launch=launch)
        drop_unfinished(folder.checkpoints, attempt=attempt.number)
        folder.cut(start_step)
        return json.dumps(asdict(attempt))

    told = ""
    while not told:
        picked = while_voting(group, reporter, pick)
        told = group.from_rank_0(together(group, partial(take, picked)))
    folder.remove(probe)
    attempt = Attempt(**json.loads(told))
    return attempt, _fetched(folder, attempt.resumed_from, group, reporter)


def _fetched(folder: RunFolder, name: str, group: Group, reporter: Reporter) -> Path | None:
    """The checkpoint `name`, whose files are here then; None if there is no name."""
    if not name:
        return None
    checkpoint = folder.checkpoints / name
    brought = while_voting(  # rank 0 has it, and has read every byte
        group, reporter, lambda: folder.fetch(checkpoint) if group.rank else None
    )
    together(group, brought.result)
    return checkpoint


def while_voting(group: Group, reporter: Reporter, act: Callable[[], T]) -> Future[T]:
    """Do `act` in a thread, and vote until all ranks have: it may take longer than a hang."""
    pool = ThreadPoolExecutor(1)
    try:
        running = pool.submit(act)
        while group.vote(Vote(waiting=not running.done())).waiting:
            reporter.beat()
            wait([running], timeout=WAIT_S)
    finally:
        pool.shutdown(wait=False)
    return running


def _newest_of_now(folder: RunFolder, attempts: Sequence[Attempt]) -> tuple[Path | None, list[str]]:
    """`newest_of`; again if a run that still lives has removed and written some meanwhile."""
    while True:
        there = _living(folder, attempts)
        try:
            checkpoint, passed = newest_of(folder, attempts)
        except CheckpointError:
            if _living(folder, attempts) == there:
                raise
            continue
        if not passed or _living(folder, attempts) == there:
            return checkpoint, passed


def _living(folder: RunFolder, attempts: Sequence[Attempt]) -> list[Path]:
    folder.refresh(CHECKPOINTS)
    return living(folder.checkpoints, attempts)


def _is_gone(folder: RunFolder, checkpoint: Path | None) -> bool:
    if checkpoint is None:
        return False
    return not folder.exists(f"{CHECKPOINTS}/{checkpoint.name}/manifest.json")


def _begin(folder: RunFolder, attempt: Attempt) -> None:
    """Take the run over; on a full disk, after what dead attempts left half written has gone.

    Not before it is full: an attempt that still lives, and will not be overtaken in the end, would
    miss the part that it is writing.
    """
    try:
        folder.begin(attempt)
    except OSError:
        drop_unfinished(folder.checkpoints, attempt=attempt.number)
        folder.begin(attempt)


def _threads(plan: TrainPlan, group: Group, checkpoint: Path | None) -> int:
    """Torch threads of each worker: as set, else as before the resume, else its share of cores."""
    if plan.trainer.threads:
        return plan.trainer.threads
    if checkpoint is not None:
        saved = read_state(checkpoint)
        if saved["world_size"] == group.world_size:
            return saved["threads"]  # another count would change the last bits of the losses
    here = int(os.environ.get("LOCAL_WORLD_SIZE", group.world_size))
    return max(1, len(os.sched_getaffinity(0)) // here)


def _write_probe(folder: RunFolder, probe: str) -> None:
    try:
        folder.touch(probe)
    except OSError as error:
        raise ConfigError(
            f"A worker cannot write to the run folder {folder.place}: {error.strerror or error}. "
            "Set run.folder to a folder that all nodes share and may write to."
        ) from error


def _check_shared(folder: RunFolder, launch: str, world_size: int) -> None:
    unseen = [rank for rank in range(world_size) if not folder.exists(f".seen-{launch}-{rank}")]
    if unseen:
        raise ConfigError(
            f"The run folder {folder.place} is not shared: rank 0 does not see what ranks {unseen} "
            "wrote there. Set run.folder to a folder that all nodes share."
        )


def restore(
    plan: TrainPlan,
    group: Group,
    store: Store | GrowingStore,
    *,
    attempt: Attempt,
    checkpoint: Path | None,
    mine: tuple[int, int],
) -> Training:
    """Bring this rank to where `checkpoint` was taken, or to step 0.

    Raises:
        ConfigError: The checkpoint is of another run.
        CheckpointError: It cannot be read.
        DataError: The next batch is not the one the checkpoint was about to read.
    """
    model, attention = make_model(plan, group.device)
    optimizer = make_optimizer(model, plan.optimizer)
    server = serve(store, plan.layout)
    inexact, resharded, average = "", "", list[Tensor]()
    if checkpoint is None:
        if plan.init:
            initial_weights(plan.init, model, tokenizer_sha256=plan.tokenizer_sha256)
        average = begin_average(model) if plan.trainer.average else []
        memory = empty_memory(model.config, mine[1] - mine[0], device=group.device)
        rows, counters = server.initial_state(), Counters()
    else:
        saved = read_state(checkpoint)
        check_identity(
            saved["identity"], plan.identity(), where=str(checkpoint), reshard=plan.reshard
        )
        check_parts(store, saved, where=checkpoint)
        load_weights(checkpoint, model)
        load_optimizer(checkpoint, model, optimizer)
        if saved["plan"]["trainer"].get("average"):
            kept = load_average(checkpoint, model)
            average = kept if plan.trainer.average else []
        elif plan.trainer.average:
            average = begin_average(model)  # it was switched on: from here
        rows = RowsState.from_json(saved["rows"])
        counters = Counters(**saved["counters"])
        if saved["plan"]["model"]["memory"] != plan.model.memory:  # of another length: no measure
            counters = replace(counters, metric="", best=None, best_step=0, stale=0, scored=0)
        if counters.skipped_in_row >= SKIPS_IN_ROW:  # it was stopped for that: another chance
            counters = replace(counters, skipped_in_row=0)
        layout = Layout(**saved["plan"]["layout"])
        _check_next_batch(serve(store, layout), rows, saved, checkpoint)
        if layout.identity() == plan.layout.identity():
            memory = load_memory(checkpoint, mine, group.device).resized(plan.model.memory)
        else:
            dealt = reshard(store.by_length("train"), rows, old=layout, new=plan.layout)
            rows, resharded = dealt.state, dealt.in_words(layout, plan.layout)
            memory = empty_memory(model.config, mine[1] - mine[0], device=group.device)
        inexact = "; ".join(
            f"{name} was {saved.get(name, 'that of an older version')} and is {now}"
            for name, now in (
                ("world_size", attempt.world_size),
                ("threads", attempt.threads),
                ("attention", model.backend),
            )
            if saved.get(name) != now
        )
    return Training(
        step=rows.step,
        model=model,
        objective=wrap(model, group, z_loss=plan.trainer.z_loss),
        optimizer=optimizer,
        memory=memory,
        rows=rows,
        counters=counters,
        attention=attention,
        resharded=resharded,
        average=average,
        inexact=inexact,
    )


def make_model(plan: TrainPlan, device: torch.device) -> tuple[TransformerXL, str]:
    """The model as a run begins, the same on every rank; why it attends as it was not told to."""
    model = TransformerXL(plan.model, seed=plan.seed).to(device)
    settled = settle(
        plan.trainer.attention,
        device=device,
        dtype=torch.bfloat16 if plan.trainer.precision == "bf16" else torch.float32,
        head_width=plan.model.head_width,
    )
    model.chosen = settled.backend
    return model, settled.fault


def _check_next_batch(
    server: Server, rows: RowsState, saved: dict[str, Any], checkpoint: Path
) -> None:
    if not saved["next_batch"]:
        return  # it was not built then; the parts before it were compared
    found = server.digest_of_next(rows)
    if found != saved["next_batch"]:
        raise DataError(
            f"The next batch of step {rows.step} has sha256 {found[:12]}, {checkpoint} expected "
            f"{saved['next_batch'][:12]}: the data, or the code that deals it, has changed since. "
            "Go on with the version that wrote the checkpoint."
        )


def wrap(model: TransformerXL, group: Group, *, z_loss: float = 0.0) -> nn.Module:
    """The objective of `model`, behind DDP where gradients are to be reduced."""
    objective = Objective(model, z_loss=z_loss)
    if not group.reduces:
        return objective
    # Never copy rank 0's buffers over the others': torch renamed the switch in 2.13.
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    switch = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    devices = [group.device] if group.device.type == "cuda" else None
    options: dict[str, Any] = {switch: False}
    return DistributedDataParallel(
        objective, device_ids=devices, gradient_as_bucket_view=True, **options
    )


def settle_buckets(training: Training, plan: StepPlan, *, shape: tuple[int, int]) -> None:
    """Two backward passes that count for nothing, so that DDP's buckets are as they will stay.

    DDP orders its buckets anew after its first backward pass, and a sum over three or more ranks
    depends on the place in the bucket: without this the first steps of an attempt would differ in
    their last bits from the same steps of an attempt that did not stop.
    """
    if plan.world_size == 1:
        return
    device = training.memory.states.device
    blank = torch.zeros(shape, dtype=torch.int64, device=device)
    rows = Rows(tokens=blank, targets=blank, offset=blank, numbers=blank[:, 0])
    for _ in range(2):
        backward(
            training.objective, rows, training.memory, plan=plan, step=0, targets=blank.numel()
        )
        training.optimizer.zero_grad(set_to_none=True)
