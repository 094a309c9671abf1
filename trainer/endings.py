"""Verdicts that no worker gives: on those that died too often, and those that never came."""

from trainer.board import Entered, Verdict
from trainer.checkpoint import checkpoints, step_of
from trainer.plan import TrainPlan
from trainer.remote_run import open_run


def gave_up(plan: TrainPlan, entered: Entered) -> Verdict:
    """The verdict on workers that died too often."""
    first = entered.first_error or "they left no word: killed from outside, or out of memory"
    return Verdict(
        status="gave up",
        kind="error",
        reason=(
            f"The workers were started {entered.starts - 1} times with no checkpoint between "
            f"(cluster.retries = {plan.cluster.retries}). What ended them first: {first}. The same "
            "command goes on from the newest checkpoint."
        ),
    )


def ended_before_it_began(plan: TrainPlan, reason: str) -> Verdict:
    """The verdict on a run that was told to stop before there were workers."""
    return _stopped(plan, f"{reason}, before the workers were there")


def ended_without_workers(plan: TrainPlan, reason: str) -> Verdict:
    """The verdict on a run that was told to stop while its workers were gone, or hung."""
    return _stopped(plan, f"{reason}, and no worker answered: what came after it is lost")


def _stopped(plan: TrainPlan, reason: str) -> Verdict:
    """Nobody saved the present step: the run stands where its newest checkpoint does."""
    folder = open_run(plan.folder)
    folder.refresh()
    committed = checkpoints(folder.checkpoints)
    return Verdict(status="stopped", reason=reason, step=max(map(step_of, committed), default=0))
