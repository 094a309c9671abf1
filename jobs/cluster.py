"""The Ray that a command works on: its own, gone afterwards, or a cluster that was there before."""

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from trainer.errors import ConfigError

OWN_ENVIRONMENT = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@contextmanager
def local_ray(
    *, num_cpus: int | None = None, address: str = "", dashboard: bool = False
) -> Iterator[None]:
    """Start a Ray for the `with` block and end it after, or join the one at `address`.

    Our own never attaches to another Ray of this machine, asks each client for a random token
    (its ports listen on every interface), reports nothing to anybody, keeps its files in a short
    folder of the system's temp folder (Ray refuses socket paths over 107 bytes) and removes them.
    Ray sets its own SIGTERM handler here: callers install theirs inside the block.

    Args:
        num_cpus: Cores that our own Ray may hand out; all if None.
        address: A cluster to join; empty starts our own.
        dashboard: Start the dashboard of our own Ray, on loopback.

    Raises:
        ConfigError: No cluster answers at `address`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address:
        with _joined(address):
            yield
        return
    before = {name: os.environ.pop(name, None) for name in OWN_ENVIRONMENT}
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    folder = tempfile.mkdtemp(prefix="lr-")
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=dashboard,
            dashboard_host="127.0.0.1",
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)  # a last log line may arrive while we remove
        shutil.rmtree(folder, ignore_errors=True)
        _restore(before)


@contextmanager
def _joined(address: str) -> Iterator[None]:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"cluster.address = {address!r}: no Ray cluster answers there ({error}). Start one with "
            "`ray start --head`, correct the address, or leave it empty for a Ray of our own."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
