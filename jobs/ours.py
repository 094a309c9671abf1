"""Whose address it is: what we hold goes to those that we named, and not to those of a folder.

A run's folder may be a stranger's. Its mlflow.json and config.json name an MLflow, which would get
our password or token with each call, and a Ray, whose answers can run code here.
"""

import os
from collections.abc import Container

from jobs.config import RunConfig
from jobs.mlflow_login import has_login
from jobs.track import OFF
from trainer.errors import ConfigError
from trainer.run_folder import RunFolder

MLFLOW_NAMED = ("MLFLOW_TRACKING_URI", "LONGROW__TRACKING__URI")
HERE = ("", "auto", "local")  # a Ray of this machine, or the one that RAY_ADDRESS names


def record_of(folder: RunFolder) -> dict[str, str]:
    """The run's record in MLflow, if what it names may get what we hold; empty where it has none.

    Raises:
        ConfigError: It may not.
        DataError: mlflow.json is damaged.
    """
    known = folder.record()
    if known:
        _check_mlflow(known["uri"], f"{folder.place}/mlflow.json")
    return known


def check_addresses(config: RunConfig, folder: RunFolder, *, given: Container[str]) -> None:
    """Look at the addresses that a run's own config.json names.

    Args:
        config: The run as it would go on.
        folder: Its folder.
        given: Keys that the person has set, who knows what he names.

    Raises:
        ConfigError: One that nobody here named would get what we hold.
    """
    where = f"{folder.place}/config.json"
    if "tracking.uri" not in given and config.tracking.uri not in ("", OFF):
        _check_mlflow(config.tracking.uri, where)
    address = config.cluster.address
    if (
        config.cluster.launcher == "ray"
        and "cluster.address" not in given
        and address not in (*HERE, os.environ.get("RAY_ADDRESS"))
    ):
        raise ConfigError(
            f"{where} has the Ray at {address}, which nothing here names: whoever runs that Ray "
            "can run code in who joins it, and gets the token. If it is yours, give --set "
            f"cluster.address={address} or set RAY_ADDRESS; else --set cluster.address= starts one."
        )


def _check_mlflow(uri: str, where: str) -> None:
    named = {os.environ.get(name, "").rstrip("/") for name in MLFLOW_NAMED}
    if uri.startswith("sqlite:") or uri.rstrip("/") in named:
        return
    # A database is let in with what its driver finds: PGPASSWORD, ~/.pgpass and others.
    if not uri.startswith(("http://", "https://")) or has_login(os.environ):
        raise ConfigError(
            f"{where} has MLflow at {uri}, which nothing here names, and your password or token "
            f"would go there. If it is yours, set MLFLOW_TRACKING_URI={uri}; nothing was sent."
        )
