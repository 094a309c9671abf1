"""`longrow logs`: what a job on a cluster said, and with -f what it says to its end."""

import time
from typing import TYPE_CHECKING

import click

from jobs.address import address_option
from jobs.entry import Job, Outcome, Terminated, run
from jobs.visible import echo

if TYPE_CHECKING:
    from jobs.ray_jobs import RayJob, RayJobs

SETTLE_S = 60.0  # from the end of what a job says to the end of the job


@click.command("logs", cls=Job)
@click.argument("job", metavar="JOB")
@click.option("--follow", "-f", is_flag=True, help="Go on to the end of the job; Ctrl-C leaves it.")
@address_option
def command(job: str, *, follow: bool, address: str) -> Outcome:
    """Print what a job on a cluster said, and with -f what it says to its end.

    JOB is a job's id, or a run's name, whose newest job is meant. Ctrl-C ends the looking and not
    the job.
    """
    from jobs.ray_jobs import open_jobs

    jobs, _ = open_jobs(address)
    found = jobs.find(job)
    if follow:
        found = follow_to_end(jobs, found.job)
    else:
        echo(jobs.logs(found.job), nl=False)
    return Outcome(facts={"job": found.job, "status": found.status})


def follow_to_end(jobs: "RayJobs", job: str) -> "RayJob":
    """Print what a job says until it says no more; returns the job as it ended."""
    try:
        for said in jobs.follow(job):
            echo(said, nl=False)
    except (KeyboardInterrupt, Terminated):
        echo(f"{job} goes on; `longrow logs -f {job}` follows it again.", err=True)
        raise
    return settled(jobs, job, wait_s=SETTLE_S)


def settled(jobs: "RayJobs", job: str, *, wait_s: float, poll_s: float = 0.5) -> "RayJob":
    """The job when it is over, or after `wait_s`."""
    end = time.monotonic() + wait_s
    while True:
        found = jobs.find(job)
        if found.is_over or time.monotonic() >= end:
            return found
        time.sleep(poll_s)


if __name__ == "__main__":
    run(command)
