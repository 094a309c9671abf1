"""The Ray that a command works on: its own, gone afterwards, or a cluster that was there before."""

import json
import logging
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray._raylet import (
    AuthenticationTokenLoader,  # pyright: ignore[reportAttributeAccessIssue]
    Config,  # pyright: ignore[reportAttributeAccessIssue]
)

from jobs.shared_paths import JOB
from trainer.errors import ConfigError
from trainer.settings import ClusterSettings
from trainer.signals import undisturbed
from trainer.temp_folder import make_folder, remove_folder

OWN_ENVIRONMENT = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
STARTS, SLOW = 3, "timed out during startup"  # tries of our own Ray, and what Ray says then


class NoRayError(RuntimeError):
    """A Ray of our own does not start."""


@contextmanager
def ray_for_training(settings: ClusterSettings) -> Iterator[str]:
    """A Ray that can hold the workers of a run; gives a sentence that says which.

    Raises:
        ConfigError: No cluster answers at `settings.address`.
    """
    from trainer.launch_ray import ENVIRONMENT

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # A cluster's processes have the environment of their nodes, and need to be told of ours.
    told = {name: os.environ[name] for name in ENVIRONMENT}
    slots = max(cores(), settings.workers)  # more workers than cores are slow, not wrong
    address = settings.address or address_of_job(os.environ)
    with local_ray(num_cpus=slots, address=address, environment=told):
        yield (
            f"Ray: joined the cluster at {address}."
            if address
            else f"Ray: started on this machine for this command, {slots} CPU slots."
        )


def address_of_job(environment: Mapping[str, str]) -> str:
    """The cluster whose job this process drives; empty if it is no Ray job's driver."""
    return environment.get("RAY_ADDRESS", "") if environment.get(JOB) else ""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def local_ray(
    *,
    num_cpus: int | None = None,
    address: str = "",
    dashboard: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Start a Ray for the `with` block and end it after, or join the one at `address`.

    In the driver of a Ray job, no address means the cluster that the job runs on.

    Our own never attaches to another Ray of this machine, asks each client for a random token
    (its ports listen on every interface), reports nothing to anybody, keeps its files in a short
    folder of the system's temp folder (Ray refuses socket paths over 107 bytes) and removes them.
    Ray sets its own SIGTERM handler here: callers install theirs inside the block.

    Args:
        num_cpus: Cores that our own Ray may hand out; all if None.
        address: A cluster to join; empty starts our own.
        dashboard: Start the dashboard of our own Ray, on loopback.
        environment: Variables for the processes of a cluster that is joined; our own Ray has ours.

    Yields:
        Cores of the whole cluster.

    Raises:
        ConfigError: No cluster answers at `address`.
        NoRayError: Our own does not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address := address or address_of_job(os.environ):
        with _joined(address, environment or {}):
            yield _cores()
        return
    before = {name: os.environ.pop(name, None) for name in OWN_ENVIRONMENT}
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    _read_environment()
    folder = make_folder()
    try:
        _start(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=dashboard,
            dashboard_host="127.0.0.1",
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        yield _cores()
    finally:
        with undisturbed():  # however often Ctrl-C is pressed: else a part of Ray would stay
            ray.shutdown()
            remove_folder(folder)
        _restore(before)


def _start(**options: Any) -> None:
    # Ray gives its processes 30 s to come up, which no setting changes; on a machine that had to
    # read them from its disk, or is busy, the next try finds it done.
    for left in reversed(range(STARTS)):
        try:
            ray.init(**options)
        except Exception as error:
            if SLOW not in str(error):
                raise
            ray.shutdown()
            if not left:
                load = os.getloadavg()[0]
                raise NoRayError(
                    f"Ray's processes did not come up in 30 s, {STARTS} times: this machine is too "
                    f"busy (load {load:.1f} on {cores()} cores). Let other work end and "
                    "give the command again: what was done stays."
                ) from error
        else:
            return


@contextmanager
def _joined(address: str, environment: Mapping[str, str]) -> Iterator[None]:
    _knock(address)
    # What the job itself sets holds, and Ray refuses to have it said twice.
    job = json.loads(os.environ.get(JOB) or "{}").get("runtime_env") or {}
    told = {k: v for k, v in environment.items() if k not in (job.get("env_vars") or {})}
    try:
        ray.init(
            address=address,
            runtime_env={"env_vars": told} if told else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _nobody(address, error) from error
    try:
        yield
    finally:
        ray.shutdown()


def _cores() -> int:
    return int(ray.cluster_resources().get("CPU", 1))


def _knock(address: str) -> None:
    # Ray itself goes on trying for minutes before it says that nobody is there.
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto" and the like: Ray knows where to look
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise _nobody(address, error) from error


def _nobody(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"cluster.address = {address!r}: no Ray cluster answers there ({error}). Start one with "
        "`ray start --head`, correct the address, or leave it empty for a Ray of our own."
    )


def _read_environment() -> None:
    # Ray reads how to authenticate once, when it is imported; `ray.init` itself reads it again so.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    _read_environment()
