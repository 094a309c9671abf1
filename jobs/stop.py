"""`longrow stop`: have a run save its current step and end, from another shell or machine."""

import os

import click

from jobs.address import address_option
from jobs.entry import Exit, Job, Outcome, run
from jobs.visible import echo


@click.command("stop", cls=Job)
@click.argument("run_name", metavar="RUN|JOB")
@address_option
@click.option(
    "--wait-s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Seconds to wait for its end.",
)
def command(run_name: str, *, address: str, wait_s: float) -> Outcome:
    """Have a run save its current step and end, from another shell or machine.

    RUN is a run's folder, or its name under runs/. Whoever sees the folder can stop the run, be it
    a Ray job or not. The run ends as by SIGTERM: with a checkpoint and code 143. A command that
    still builds the store before it trains ends at once: the same command goes on with the build.

    With --address, or where the cluster's address is in the environment and no folder here has that
    name, JOB is what `longrow submit` sent: a job's id, or a run's name. A name that a folder here
    has and a job that runs is refused.
    """
    from click.core import ParameterSource

    from jobs.find import find_driven, is_driven

    typed = click.get_current_context().get_parameter_source("address")
    if typed is ParameterSource.COMMANDLINE or (address and not is_driven(run_name)):
        from jobs.stop_job import stop_job

        return stop_job(run_name, address=address, wait_s=wait_s)
    from trainer.checkpoint import checkpoints, step_of
    from trainer.stop_request import ask_to_stop, await_end

    folder = find_driven(run_name)
    if address and os.sep not in run_name:
        from jobs.stop_job import check_no_such_job

        check_no_such_job(run_name, here=folder.place, address=address)
    was_running = ask_to_stop(folder)
    if was_running:
        echo(f"Asked {folder.place} to stop after its current step.", err=True)
    ended = await_end(folder, wait_s=wait_s)
    folder.refresh()
    step = max(map(step_of, checkpoints(folder.checkpoints)), default=0)
    facts = {"was_running": was_running, "ended": ended, "step": step}
    if not ended:
        message = (
            f"{folder.place} has not ended in {wait_s:.0f} s. It stops when its current step and "
            "its checkpoint are done; if its driver was killed on another machine, nothing runs."
        )
        echo(f"longrow: {message}", err=True)
        return Outcome(facts=facts | {"error": message}, code=Exit.FAILED)
    how = "stopped" if was_running else "was not running"
    echo(f"{folder.place} {how}; its newest checkpoint is of step {step}.")
    return Outcome(facts=facts)


if __name__ == "__main__":
    run(command)
