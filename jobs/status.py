"""`longrow status`: how a job on a cluster is, and the last that it said."""

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from jobs.address import address_option
from jobs.entry import Job, Outcome, run
from jobs.visible import echo

if TYPE_CHECKING:
    from jobs.ray_jobs import RayJob

OF_THE_CONFIG = re.compile(r"\w+ = |\[\w+\]$")


@click.command("status", cls=Job)
@click.argument("job", metavar="JOB")
@address_option
def command(job: str, *, address: str) -> Outcome:
    """Say how a job on a cluster is, and the last that it said.

    JOB is a job's id, or a run's name, whose newest job is meant. Where the run's folder is one of
    this machine too, or at a URL that lets us in, its steps and checkpoint are told.
    """
    from jobs.ray_jobs import open_jobs
    from jobs.report import table

    jobs, _ = open_jobs(address)
    found = jobs.find(job)
    facts = facts_of(found, last_line(jobs.logs(found.job)))
    echo(table({name: value for name, value in facts.items() if value not in ("", None)}))
    return Outcome(facts=facts)


def facts_of(job: "RayJob", said: str) -> dict[str, Any]:
    """What there is to say of a job, and of its run as far as its folder is seen here."""
    # Of a failure Ray's message repeats the log; where a job never began there is only that.
    reason = job.message.splitlines()[-1] if job.message and not said else ""
    return {
        "job": job.job,
        "status": job.status,
        "run": job.run,
        "folder": job.folder,
        "submission": job.submission or None,
        "started": clock(job.started),
        "ended": clock(job.ended),
        "exit_code_of_job": job.exit_code,
        **of_folder(job.folder),
        # The last of a run that is done is where to look further.
        "said": "" if job.status == "SUCCEEDED" else said or reason,
    }


def last_line(log: str) -> str:
    """The last line that says something; empty where there is only the config so far."""
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
    return "" if OF_THE_CONFIG.match(last) else last


def clock(seconds: float | None) -> str:
    """A time for a person and for a program."""
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"


def of_folder(place: str) -> dict[str, Any]:
    """How far the run at a path or URL is; nothing where it cannot be seen from here.

    A URL that does not let us in is told under `unseen`: the job may well have the keys to it.
    """
    from jobs.runs import look
    from pipeline.errors import DataError
    from trainer.checkpoint import checkpoints
    from trainer.remote_run import open_run

    if not place.startswith("/") and "://" not in place:  # a job that `longrow submit` did not send
        return {}
    try:
        folder = open_run(place)
        folder.refresh()
        if not (folder.path / "config.json").is_file():
            return {}
        seen = look(folder, now=time.time(), silent_s=60.0)
        kept = checkpoints(folder.checkpoints)
    except (OSError, DataError) as error:
        return {"unseen": str(error)}
    newest = max((one.name for one in kept), default=None)
    return {"step": seen.step, "of": seen.of, "attempts": seen.attempts, "checkpoint": newest}


if __name__ == "__main__":
    run(command)
