"""`longrow submit`: a run as a job on a Ray cluster; the same command again goes on with it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.address import address_option
from jobs.entry import Exit, Job, Outcome, run
from jobs.run_options import config_argument, resume_option, set_option
from jobs.visible import echo

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.ray_jobs import RayJob


@click.command("submit", cls=Job)
@config_argument
@set_option
@resume_option
@address_option
@click.option(
    "--installed",
    is_flag=True,
    help="Send the config alone: the nodes (their image) have longrow installed.",
)
@click.option(
    "--python",
    default="python",
    show_default=True,
    help="The cluster's Python, as a shell on its head node finds it.",
)
@click.option(
    "--stop-grace-s",
    type=click.IntRange(min=1),
    default=120,
    show_default=True,
    help="Seconds that a stop leaves the run for its step and checkpoint, before SIGKILL.",
)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Print what the job says to its end, and end with its exit code.",
)
def command(
    config: Path,
    *,
    sets: tuple[str, ...],
    resume: str,
    address: str,
    installed: bool,
    python: str,
    stop_grace_s: int,
    follow: bool,
) -> Outcome:
    """Train the run of the TOML file CONFIG as a job on a Ray cluster.

    The config is read and checked here, LONGROW__ variables and --set included. The code that runs
    here is sent along as a wheel, all of it. Paths are those of the nodes: absolute, in a folder
    that all of them share, or URLs. A run that was stopped, or whose job died, goes on when it is
    submitted again, with another --set cluster.workers too.
    """
    import os

    from jobs.config import read_config
    from jobs.shared_paths import check_seen_by_all
    from jobs.ship import parcel

    read = _for_the_cluster(read_config(config, sets=sets, environment=os.environ))
    seen_by_all = check_seen_by_all(read)
    sent = parcel(read.to_toml(), code=not installed)

    from jobs.ray_jobs import FOLDER, NUMBER, RUN, fits, open_jobs

    jobs, seen = open_jobs(address)
    for line in (fits(seen), f"Nodes must see: {', '.join(seen_by_all.values())}."):
        echo(line, err=True, nl=bool(line))
    folder = f"{read.run.folder.rstrip('/')}/{read.run.name}"
    number = _next_number(jobs.all(), read, folder)
    metadata = {
        RUN: read.run.name,
        FOLDER: folder,
        NUMBER: str(number),
        "longrow.version": sent.version,
        "longrow.sha256": sent.sha256,
    }
    words = [python, "-m", "jobs.train", "run.toml", "--resume", resume]
    echo(f"Sending {sent.what}.", err=True)
    job = jobs.submit(
        f"{read.run.name}-{number}",
        package=sent.data,
        entrypoint=shlex.join(words),
        # Ray would kill a job that is stopped after 3 s, in the middle of its checkpoint.
        environment={"RAY_JOB_STOP_WAIT_TIME_S": str(stop_grace_s)},
        metadata={name: value for name, value in metadata.items() if value},
    )
    echo(job if follow else f"{job}\n\nLook further:\n{_ways_on(job, jobs.address)}")
    facts = {
        "job": job,
        "run": read.run.name,
        "folder": folder,
        "submission": number,
        "address": jobs.address,
        "sent_files": sent.files,
        "sent_bytes": sent.size_bytes,
        "sha256": sent.sha256,
        "stop_grace_s": stop_grace_s,
    }
    if not follow:
        return Outcome(facts=facts)
    from jobs.logs import follow_to_end

    ended = follow_to_end(jobs, job)
    return Outcome(facts=facts | {"status": ended.status}, code=code_of(ended))


def _for_the_cluster(config: "RunConfig") -> "RunConfig":
    """The config as the job reads it: recorded where we are told to, on the job's own cluster.

    Raises:
        ConfigError: It cannot be run as a job.
    """
    import os
    from dataclasses import replace

    from trainer.errors import ConfigError

    if config.cluster.launcher != "ray":
        raise ConfigError(
            f"cluster.launcher = {config.cluster.launcher!r} starts no workers on a cluster. Leave "
            "it out, or train here with `longrow train`."
        )
    if not config.data.reads:
        raise ConfigError("data.store is empty: name a store that the cluster's nodes see.")
    uri = config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    return replace(
        config,
        tracking=replace(config.tracking, uri=uri),
        cluster=replace(config.cluster, address=""),  # a job's driver knows its own
    )


def _next_number(jobs: "list[RayJob]", config: "RunConfig", folder: str) -> int:
    """How often the run will have been submitted.

    Raises:
        ConfigError: A job of it is not over.
    """
    from trainer.errors import ConfigError

    for job in jobs:
        if job.folder == folder and not job.is_over:
            raise ConfigError(
                f"Job {job.job} of the run {folder} is {job.status}, and one run has one writer. "
                f"`longrow logs -f {job.job}` follows it, `longrow stop {job.job}` ends it with a "
                "checkpoint; or give another run.name."
            )
    taken = {job.job for job in jobs}
    number = 1 + max((job.submission for job in jobs if job.folder == folder), default=0)
    while f"{config.run.name}-{number}" in taken:  # of a run of that name in another folder
        number += 1
    return number


def code_of(job: "RayJob") -> Exit:
    """The exit code that a job's end deserves: its command's own where we know it."""
    if job.status == "SUCCEEDED":
        return Exit.DONE
    if job.status == "STOPPED":
        return Exit.TERMINATED
    return Exit(job.exit_code) if job.exit_code in list(Exit) else Exit.FAILED


def _ways_on(job: str, address: str) -> str:
    commands = {
        f"longrow status {job}": "how far it is",
        f"longrow logs -f {job}": "what it says, to its end",
        f"longrow stop {job} --address {address}": "a checkpoint of its current step, and its end",
    }
    given = f" --address {address}"
    return "\n".join(
        f"  {line if '--address' in line else line + given}\n      {why}"
        for line, why in commands.items()
    )


if __name__ == "__main__":
    run(command)
