"""Start a run in this process: alone, or as the rank that torchrun's environment names. No Ray."""

import gc
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from traceback import clear_frames

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from trainer.blame import is_out_of_memory, tell
from trainer.board import Board, LocalReporter, News, Verdict
from trainer.endings import ended_before_it_began
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.settings import DETERMINISTIC_CUBLAS, ClusterSettings

POLL_S = 0.2


def launch_local(
    plan: TrainPlan, *, on_news: Callable[[News], None], stop_reason: Callable[[], str]
) -> Verdict:
    """Train `plan` here and now; the calling thread watches, a second one trains.

    Args:
        plan: The run.
        on_news: Called a few times a second with what the workers reported.
        stop_reason: Asked as often; a reason makes the run stop after the current step, or at once
            while it still waits for other ranks to come.

    Raises:
        MemoryError: There was not enough of it.
        Exception: What else ended the training, unless it was decided on.
    """
    board = Board()
    box: list[Verdict] = []
    errors: list[BaseException] = []
    joined = threading.Event()

    def work() -> None:
        try:
            box.append(_train_here(plan, board, joined))
        except BaseException as error:  # noqa: BLE001 - carried to the calling thread, raised there
            errors.append(error)

    thread = threading.Thread(target=work, name="train", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_S)
        if reason := stop_reason():
            board.ask_stop(reason)
            if not joined.is_set() and thread.is_alive():
                return ended_before_it_began(plan, reason)
        on_news(board.drain())
    on_news(board.drain())
    if errors and is_out_of_memory(errors[0]):
        raise MemoryError(tell(int(os.environ.get("RANK", "0")), errors[0])) from errors[0]
    if errors:
        raise errors[0]
    return box[0]


def _train_here(plan: TrainPlan, board: Board, joined: threading.Event) -> Verdict:
    for name, value in DETERMINISTIC_CUBLAS.items():
        os.environ.setdefault(name, value)
    cuda = torch.cuda.is_available() and plan.cluster.gpus != "no"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else None
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        _meet("nccl" if cuda else "gloo", plan.cluster)
    joined.set()
    try:
        verdict = _train_in_group(plan, board, device or torch.device("cpu"))
    except BaseException as error:
        _let_go(error)
        if several:
            try:
                _leave()
            except Exception as other:  # noqa: BLE001 - the first error is what a person must read
                error.add_note(f"Nor could the process group be left: {other}")
        raise
    if several:
        _leave()
    return verdict


def _leave() -> None:
    """Leave the process group, and wait until no thread of it is left.

    A thread of gloo lets go of a tensor after its sum is known, and needs the interpreter for it:
    one that is late, and finds the interpreter ending, aborts the process (pytorch #190489).
    Collecting a group waits for its threads.
    """
    dist.destroy_process_group()
    gc.collect()


def _train_in_group(plan: TrainPlan, board: Board, device: torch.device) -> Verdict:
    """As long as this runs, and no longer, there is a group."""
    group = Group(device=device, timeout_s=plan.cluster.hang_timeout_s)
    return train(plan, group, LocalReporter(board), lambda _rows: None)


def _let_go(error: BaseException) -> None:
    """Free what the frames below `error` hold, the group among it; the trace can still be read."""
    below: BaseException | None = error
    while below is not None:
        clear_frames(below.__traceback__)
        below = below.__cause__ or below.__context__


def _meet(backend: str, settings: ClusterSettings) -> None:
    """Wait for the other ranks, then join them: to be late is no hang."""
    patience = timedelta(seconds=settings.start_timeout_s)
    store, rank, world_size = next(rendezvous("env://", timeout=patience))
    store.set(f"longrow-{rank}", "here")
    store.wait([f"longrow-{other}" for other in range(world_size)], patience)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=settings.hang_timeout_s),
    )
