"""The end of a job on a cluster: asked for, waited for, and what it left."""

from jobs.entry import Exit, Outcome
from jobs.visible import echo
from trainer.errors import ConfigError


def stop_job(word: str, *, address: str, wait_s: float) -> Outcome:
    """Stop the job that `word` names and wait for its end.

    Args:
        word: A job's id, or a run's name.
        address: Of the cluster.
        wait_s: Seconds to wait.

    Raises:
        ConfigError: There is no such cluster, or no such job.
    """
    from jobs.logs import settled
    from jobs.ray_jobs import open_jobs
    from jobs.status import facts_of, last_line

    jobs, _ = open_jobs(address)
    job = jobs.find(word).job
    was_running = jobs.stop(job)
    if was_running:
        echo(f"Asked {job} to stop after its current step.", err=True)
    ended = settled(jobs, job, wait_s=wait_s)
    said = last_line(jobs.logs(job))
    facts = {**facts_of(ended, said), "was_running": was_running, "is_over": ended.is_over}
    if not ended.is_over:
        message = (
            f"{job} has not ended in {wait_s:.0f} s. Ray kills it when the grace is over that it "
            "was submitted with; `longrow status` says when."
        )
        echo(f"longrow: {message}", err=True)
        return Outcome(facts=facts | {"error": message}, code=Exit.FAILED)
    how = "stopped" if was_running else f"was over ({ended.status})"
    echo(f"{job} {how}. {facts['said'].removeprefix('longrow: ')}".rstrip())
    return Outcome(facts=facts)


def check_no_such_job(word: str, *, here: str, address: str) -> None:
    """Refuse a name that a run here has, and another run's job that runs on the cluster.

    Where the cluster does not answer, or has no such job, the run here is the one that is meant.

    Args:
        word: The name.
        here: Folder of the run here.
        address: Of the cluster.

    Raises:
        ConfigError: It could be either.
    """
    from jobs.ray_jobs import ClusterGoneError, open_jobs

    try:
        jobs, _ = open_jobs(address)
        job = jobs.find(word)
    except (ConfigError, ClusterGoneError):
        return
    if not job.is_over and job.folder != here:
        raise ConfigError(
            f"{word!r} names two: the run in {here}, and the job {job.job} at {address}, which "
            f"trains {job.folder or 'another run'}. Say which: `longrow stop {here}`, or "
            f"`longrow stop {job.job}`."
        )
