"""`longrow list`: the jobs of a cluster, the newest first."""

import click

from jobs.address import address_option
from jobs.entry import Job, Outcome, run
from jobs.visible import echo


@click.command("list", cls=Job)
@address_option
def command(*, address: str) -> Outcome:
    """List the jobs of a cluster, the newest first.

    Those that others submitted are listed with their command.
    """
    from jobs.ray_jobs import open_jobs
    from jobs.status import clock

    jobs, _ = open_jobs(address)
    found = jobs.all()
    width = max((len(job.job) for job in found), default=0)
    for job in found:
        what = job.folder or job.entrypoint[:60]
        echo(f"{job.job:<{width}}  {job.status:<9}  {clock(job.started):<20}  {what}")
    if not found:
        echo(f"No job was submitted to {jobs.address}.")
    return Outcome(facts={"jobs": [job.to_json() for job in found]})


if __name__ == "__main__":
    run(command)
