"""The jobs of a Ray cluster, by its dashboard: one sentence for all that can go wrong on the way.

An address, a token or a version that does not fit is told before anything is sent (`open_jobs`); a
cluster that goes away later is a ClusterGoneError.
"""

import asyncio
import logging
import os
import platform
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import metadata, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from ray.exceptions import RayError
from ray.job_submission import JobDetails, JobSubmissionClient

from jobs.address import ADDRESSES
from jobs.cluster_look import Seen, look, token_of
from jobs.entry import DISTRIBUTION, Exit
from trainer.errors import ConfigError
from trainer.settings import check_no_credentials
from trainer.temp_folder import temp_folder

TIMEOUT_S = 10.0
RUN, FOLDER, NUMBER = "longrow.run", "longrow.folder", "longrow.submission"
NO_AGENT, STARTING_S = "No available agent", 60.0  # what a head says that has just come up
ENDED = {"STOPPED", "SUCCEEDED", "FAILED"}


class ClusterGoneError(ConnectionError):
    """A cluster that was there does not answer, or not as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJob:
    """A job as the cluster tells it.

    Attributes:
        job: Its id.
        status: PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED, as Ray has it; but STOPPED too where
            the run was stopped by its folder or a signal, in which Ray sees a failure.
        run: Name of the run; empty where `longrow submit` did not send it.
        folder: Of the run, as the nodes see it.
        submission: How often the run had been submitted to this cluster, this time included.
        entrypoint: Its command.
        started: Seconds since 1970; None where it has not.
        ended: The same.
        exit_code: Of its command; None where that has not ended by itself.
        message: Ray's own words.
    """

    job: str
    status: str
    run: str
    folder: str
    submission: int
    entrypoint: str
    started: float | None
    ended: float | None
    exit_code: int | None
    message: str

    @property
    def is_over(self) -> bool:
        return self.status in ENDED

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def open_jobs(address: str) -> "tuple[RayJobs, Seen]":
    """Come to the cluster at `address`, with the token of the environment.

    Raises:
        ConfigError: There is no such cluster, or it does not let us in.
    """
    if not address:
        raise ConfigError(
            "There is no cluster's address: give --address http://HOST:8265, that of its "
            "dashboard, or set RAY_API_SERVER_ADDRESS."
        )
    check_no_credentials("--address", address)
    if not address.startswith(("http://", "https://")):
        raise ConfigError(
            f"--address {address} is none of a dashboard, which takes jobs: write it as "
            "http://HOST:8265."
        )
    address = address.rstrip("/")
    try:
        seen = look(address, timeout_s=TIMEOUT_S)
    except ConfigError as error:
        raise ConfigError(f"--address {address}: {error}.") from error
    return RayJobs(address), seen


def fits(seen: Seen) -> str:
    """A sentence where the cluster's versions are others than ours; empty where they are the same.

    Raises:
        ConfigError: The project cannot run on them.
    """
    (ours,) = (one for one in map(Requirement, requires(DISTRIBUTION) or []) if one.name == "ray")
    wanted = {
        "Ray": (seen.version, version("ray"), ours.specifier),
        "Python": (
            seen.python,
            platform.python_version(),
            SpecifierSet(metadata(DISTRIBUTION)["Requires-Python"]),
        ),
    }
    for name, (there, _, range_) in wanted.items():
        if not range_.contains(there, prereleases=True):
            raise ConfigError(
                f"The cluster runs {name} {there}, and {name} {range_} is wanted. Start it with "
                "that; nothing was sent."
            )
    others = [f"{k} {there} (here {here})" for k, (there, here, _) in wanted.items()]
    differs = any(there != here for there, here, _ in wanted.values())
    return f"The cluster runs {' and '.join(others)}." if differs else ""


class RayJobs:
    """What can be asked of the cluster at an address; `open_jobs` makes one."""

    def __init__(self, address: str) -> None:
        self.address = address
        for name in ("dashboard_sdk", "job.sdk"):  # they tell of packages and of sockets
            logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.WARNING)
        token = token_of(os.environ)
        before = os.environ.get(ADDRESSES[0])
        os.environ[ADDRESSES[0]] = address  # what stands there goes before what Ray is given
        try:
            with self._told():
                self._client = JobSubmissionClient(
                    address, headers={"Authorization": f"Bearer {token}"} if token else None
                )
        finally:
            os.environ.pop(ADDRESSES[0])
            if before is not None:
                os.environ[ADDRESSES[0]] = before

    def all(self) -> list[RayJob]:
        """Every job that came by the dashboard, the newest first."""
        with self._told():
            found = self._client.list_jobs()
        jobs = [_job(one) for one in found if one.submission_id]
        return sorted(jobs, key=lambda job: job.started or 0.0, reverse=True)

    def find(self, word: str) -> RayJob:
        """The job that `word` names: its id, or a run, of which the newest is meant.

        Raises:
            ConfigError: The cluster has none.
        """
        jobs = self.all()
        named = [job for job in jobs if job.job == word]
        named += sorted(
            (job for job in jobs if job.run == word), key=lambda job: job.submission, reverse=True
        )
        if named:
            return named[0]
        known = ", ".join(job.job for job in jobs[:5]) or "it has none yet"
        raise ConfigError(
            f"{word!r} is no job at {self.address}, and no run that was submitted there. The "
            f"newest are: {known}."
        )

    def submit(
        self,
        job: str,
        *,
        entrypoint: str,
        package: bytes,
        environment: Mapping[str, str],
        metadata: Mapping[str, str],
    ) -> str:
        """Start a job; returns its id. A cluster that is still coming up is waited for.

        Args:
            job: The id.
            entrypoint: A command of the shell.
            package: A zip file, whose content is what the job's processes stand in.
            environment: Variables for its processes; everybody who is let in can read them.
            metadata: For whoever looks at it; the same.
        """
        end = time.monotonic() + STARTING_S
        with temp_folder() as folder, self._told():
            path = Path(folder, "longrow.zip")
            path.write_bytes(package)
            while True:
                try:
                    return self._client.submit_job(
                        entrypoint=entrypoint,
                        submission_id=job,
                        runtime_env={"working_dir": str(path), "env_vars": dict(environment)},
                        metadata=dict(metadata),
                    )
                except RuntimeError as error:
                    if NO_AGENT not in str(error) or time.monotonic() > end:
                        raise
                time.sleep(1.0)

    def logs(self, job: str) -> str:
        """All that the job said so far."""
        with self._told():
            return self._client.get_job_logs(job)

    def follow(self, job: str) -> Iterator[str]:
        """What it said and says, to its end."""
        lines = self._client.tail_job_logs(job)
        with asyncio.Runner() as runner, self._told():
            while (said := runner.run(_next(lines))) is not None:
                yield said

    def stop(self, job: str) -> bool:
        """Ask it to stop; False if it was over."""
        with self._told():
            return self._client.stop_job(job)

    @contextmanager
    def _told(self) -> Iterator[None]:
        import aiohttp
        import requests

        kinds = (requests.RequestException, aiohttp.ClientError, RuntimeError, ConnectionError)
        try:
            yield
        except (*kinds, RayError, ValueError, TypeError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise ClusterGoneError(
                f"The cluster at {self.address} does not do what it was asked ({first[:200]}). If "
                "it is gone, so are its jobs; runs go on from their checkpoints by `longrow "
                "submit` to another."
            ) from error


async def _next(lines: AsyncIterator[str]) -> str | None:
    return await anext(lines, None)


def _job(one: JobDetails) -> RayJob:
    told = one.metadata or {}
    number = told.get(NUMBER, "")
    stopped = one.driver_exit_code in (Exit.INTERRUPTED, Exit.TERMINATED)
    return RayJob(
        job=one.submission_id or "",
        status="STOPPED" if stopped else one.status.value,
        run=told.get(RUN, ""),
        folder=told.get(FOLDER, ""),
        submission=int(number) if number.isdecimal() else 0,
        entrypoint=one.entrypoint,
        started=one.start_time / 1e3 if one.start_time else None,
        ended=one.end_time / 1e3 if one.end_time else None,
        exit_code=one.driver_exit_code,
        message=(one.message or "").strip(),
    )
