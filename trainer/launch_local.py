"""Start a run in this process: alone, or as the rank that torchrun's environment names. No Ray."""

import os
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from trainer.board import Board, LocalReporter, News, Verdict
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan

POLL_S = 0.2


def launch_local(
    plan: TrainPlan, *, on_news: Callable[[News], None], stop_reason: Callable[[], str]
) -> Verdict:
    """Train `plan` here and now; the calling thread watches, a second one trains.

    Args:
        plan: The run.
        on_news: Called a few times a second with what the workers reported.
        stop_reason: Asked as often; a reason makes the run stop after the current step.

    Raises:
        Exception: What ended the training, unless it was decided on.
    """
    board = Board()
    box: list[Verdict] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            box.append(_train_here(plan, board))
        except BaseException as error:  # noqa: BLE001 - carried to the calling thread, raised there
            errors.append(error)

    thread = threading.Thread(target=work, name="train", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_S)
        if reason := stop_reason():
            board.ask_stop(reason)
        on_news(board.drain())
    on_news(board.drain())
    if errors:
        raise errors[0]
    return box[0]


def _train_here(plan: TrainPlan, board: Board) -> Verdict:
    cuda = torch.cuda.is_available() and plan.cluster.gpus != "no"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else None
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        dist.init_process_group(
            "nccl" if cuda else "gloo", timeout=timedelta(seconds=plan.cluster.hang_timeout_s)
        )
    try:
        group = Group(device=device or torch.device("cpu"), timeout_s=plan.cluster.hang_timeout_s)
        return train(plan, group, LocalReporter(board), lambda _rows: None)
    finally:
        if several:
            dist.destroy_process_group()
