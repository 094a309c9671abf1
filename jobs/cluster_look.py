"""A look at a Ray cluster from outside: who answers, what it has. Nothing is started or joined."""

import json
import os
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass

from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]

from trainer.errors import ConfigError

TURNED_AWAY = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a cluster says of itself.

    Attributes:
        version: Of Ray; empty where it was not said.
        nodes: Alive; 0 where only the dashboard was asked.
        resources: Of all nodes together.
        open_to_all: Whether it answered us without a token too; None where that was not tried.
    """

    version: str = ""
    nodes: int = 0
    resources: dict[str, float]
    open_to_all: bool | None = None

    def in_words(self) -> str:
        """For a person."""
        if not self.nodes:
            return f"the dashboard of Ray {self.version}"
        cpus, gpus = (self.resources.get(name, 0) for name in ("CPU", "GPU"))
        return f"{self.nodes} nodes, {cpus:.0f} CPUs, {gpus:.0f} GPUs"


def look(address: str, *, timeout_s: float) -> Seen:
    """Ask the cluster at `address`, with the token of the environment.

    Args:
        address: host:port of its GCS, or http://host:port of its dashboard.
        timeout_s: For each question.

    Raises:
        ConfigError: Nobody answers there, or not to us.
    """
    host, _, port = address.rpartition("://")[2].rstrip("/").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError("write it as host:port or http://host:port")
    try:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"nobody answers there ({error})") from error
    if address.startswith(("http://", "https://")):
        return _dashboard(address.rstrip("/"), timeout_s)
    return _nodes(f"{host}:{port}", timeout_s)


def _dashboard(address: str, timeout_s: float) -> Seen:
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    try:
        told = _get(f"{address}/api/version", token, timeout_s)
        return Seen(
            version=json.loads(told)["ray_version"],
            resources={},
            open_to_all=_is_open(f"{address}/api/jobs/", timeout_s),
        )
    except urllib.error.HTTPError as error:
        if error.code in TURNED_AWAY:
            raise ConfigError(f"it answers {error.code}: our token is not its token") from error
        raise ConfigError(f"it answers {error.code}") from error
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"what answers there is no dashboard of Ray ({error})") from error


def _is_open(url: str, timeout_s: float) -> bool:
    try:
        _get(url, "", timeout_s)
    except urllib.error.HTTPError as error:
        return error.code not in TURNED_AWAY
    return True


def _get(url: str, token: str, timeout_s: float) -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
        return answer.read()


def _nodes(address: str, timeout_s: float) -> Seen:
    try:
        nodes = GcsClient(address=address).get_all_node_info(timeout=timeout_s)
    except Exception as error:  # Ray's own errors have no base but this
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"it does not let us in ({first.partition('. ')[0][:200]})") from error
    alive = [node for node in nodes.values() if node.state == 0]
    resources: dict[str, float] = {}
    for node in alive:
        for name, amount in node.resources_total.items():
            resources[name] = resources.get(name, 0.0) + amount
    return Seen(nodes=len(alive), resources=resources)
