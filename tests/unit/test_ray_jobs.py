"""What a cluster says of its jobs, and what we make of it, without a cluster."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.job_submission import JobDetails, JobStatus, JobType

from jobs import ray_jobs
from jobs.entry import Exit, Terminated
from jobs.logs import follow_to_end, settled
from jobs.ray_jobs import FOLDER, NUMBER, RUN, RayJob, RayJobs
from jobs.status import last_line
from jobs.submit import code_of
from tests.command import code_of as run_command
from trainer.errors import ConfigError


def told(job: str, status: JobStatus = JobStatus.RUNNING, **more: Any) -> JobDetails:
    return JobDetails(
        type=JobType.SUBMISSION, submission_id=job, status=status, entrypoint="python", **more
    )


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> tuple[RayJobs, list[JobDetails]]:
    """A cluster, and what it lists."""
    listed: list[JobDetails] = []

    class Client:
        def __init__(self, *_: object, **__: object) -> None: ...

        def list_jobs(self) -> list[JobDetails]:
            return listed

    monkeypatch.setattr(ray_jobs, "JobSubmissionClient", Client)
    return RayJobs("http://127.0.0.1:1"), listed


@pytest.mark.parametrize(
    ("ended", "status", "code"),
    [
        ({"status": JobStatus.SUCCEEDED, "driver_exit_code": 0}, "SUCCEEDED", Exit.DONE),
        ({"status": JobStatus.STOPPED}, "STOPPED", Exit.TERMINATED),
        ({"status": JobStatus.FAILED, "driver_exit_code": 143}, "STOPPED", Exit.TERMINATED),
        ({"status": JobStatus.FAILED, "driver_exit_code": 130}, "STOPPED", Exit.TERMINATED),
        ({"status": JobStatus.FAILED, "driver_exit_code": 3}, "FAILED", Exit.BAD_DATA),
        ({"status": JobStatus.FAILED, "driver_exit_code": 137}, "FAILED", Exit.FAILED),
        ({"status": JobStatus.FAILED}, "FAILED", Exit.FAILED),
    ],
)
def test_a_job_ends_with_the_code_of_its_command(
    jobs: tuple[RayJobs, list[JobDetails]], ended: dict[str, Any], status: str, code: Exit
) -> None:
    cluster, listed = jobs
    listed.append(told("a-1", **ended))
    (job,) = cluster.all()
    assert (job.status, job.is_over, code_of(job)) == (status, True, code)


def test_a_word_is_a_jobs_id_before_it_is_a_runs_name_of_which_the_newest_is_meant(
    jobs: tuple[RayJobs, list[JobDetails]],
) -> None:
    cluster, listed = jobs
    for number in (1, 10, 9):
        metadata = {RUN: "a", FOLDER: "/shared/runs/a", NUMBER: str(number)}
        listed.append(told(f"a-{number}", metadata=metadata, start_time=number * 1_000))
    listed.append(told("b", metadata={RUN: "of-another", NUMBER: "7"}, start_time=500))
    listed.append(told("c", metadata={RUN: "b", NUMBER: "x"}))  # somebody else's metadata
    assert [job.job for job in cluster.all()] == ["a-10", "a-9", "a-1", "b", "c"]
    assert [cluster.find(word).job for word in ("a", "a-9", "b")] == ["a-10", "a-9", "b"]
    assert cluster.find("c").submission == 0
    with pytest.raises(ConfigError, match=r"'nobody' is no job at .*a-10, a-9"):
        cluster.find("nobody")


def test_a_job_is_waited_for_until_it_is_over_and_no_longer_than_asked(
    jobs: tuple[RayJobs, list[JobDetails]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, listed = jobs
    listed.append(told("a"))
    assert not settled(cluster, "a", wait_s=0).is_over
    running = cluster.find("a")
    answers = [running, running, replace(running, status="STOPPED")]
    monkeypatch.setattr(cluster, "find", lambda _: answers.pop(0))
    ended: RayJob = settled(cluster, "a", wait_s=60, poll_s=0)
    assert (ended.status, answers) == ("STOPPED", [])


@pytest.mark.parametrize("signal", [KeyboardInterrupt, Terminated])
def test_who_stops_looking_is_told_that_the_job_goes_on(
    jobs: tuple[RayJobs, list[JobDetails]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    signal: type[BaseException],
) -> None:
    def follow(_job: str) -> Iterator[str]:
        yield "step 1\n"
        raise signal

    cluster, _ = jobs
    monkeypatch.setattr(cluster, "follow", follow)
    with pytest.raises(signal):
        follow_to_end(cluster, "a-1")
    said = capsys.readouterr()
    assert said.out == "step 1\n"
    assert said.err == "a-1 goes on; `longrow logs -f a-1` follows it again.\n"


@pytest.mark.parametrize(
    ("log", "last"),
    [
        ("", ""),
        ('[run]\nname = "a"\n\n[cluster]\nworkers = 2\n', ""),
        ('[run]\nname = "a"\nstep 5 of 9\n\n', "step 5 of 9"),
        ("longrow: The store is gone.", "longrow: The store is gone."),
    ],
)
def test_the_last_that_a_job_said_is_no_line_of_its_config(log: str, last: str) -> None:
    assert last_line(log) == last


@pytest.mark.parametrize(
    ("job", "refused"),
    [
        (told("mine-1", metadata={RUN: "mine", FOLDER: "/shared/runs/mine"}), True),
        (told("mine", metadata={}), True),
        (told("mine-1", JobStatus.STOPPED, metadata={RUN: "mine", FOLDER: "/shared/mine"}), False),
        (told("mine-1", metadata={RUN: "mine", FOLDER: "HERE"}), False),
        (told("other-1", metadata={RUN: "other", FOLDER: "/shared/runs/other"}), False),
        (None, False),
    ],
)
def test_a_name_of_a_run_here_and_of_a_job_that_runs_is_not_stopped_by_guess(
    jobs: tuple[RayJobs, list[JobDetails]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    job: JobDetails | None,
    refused: bool,
) -> None:
    cluster, listed = jobs
    here = tmp_path / "runs/mine"
    here.mkdir(parents=True)
    (here / "config.json").write_text("{}")
    if job is not None:
        if job.metadata and job.metadata.get(FOLDER) == "HERE":
            job.metadata[FOLDER] = str(here)
        listed.append(job)

    def come(address: str) -> tuple[RayJobs, None]:
        if job is None:
            raise ConfigError(f"nobody answers at {address}")
        return cluster, None

    monkeypatch.setattr(ray_jobs, "open_jobs", come)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", cluster.address)
    monkeypatch.chdir(tmp_path)
    assert run_command("stop", "mine", "--wait-s", "0") is (Exit.BAD_USE if refused else Exit.DONE)
    told = capsys.readouterr()
    if refused and job is not None:
        assert f"`longrow stop {here}`, or `longrow stop {job.submission_id}`" in told.err
        assert run_command("stop", str(here), "--wait-s", "0") is Exit.DONE
    else:
        assert "was not running" in told.out
