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
    """The verdict on a run that was told to stop while there were no workers to save a step."""
    folder = open_run(plan.folder)
    folder.refresh()
    committed = checkpoints(folder.checkpoints)
    step = max(map(step_of, committed), default=0)
    return Verdict(status="stopped", reason=f"{reason}, before the workers were there", step=step)
