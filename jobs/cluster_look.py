"""A look at a Ray cluster from outside: who answers, what it has. Nothing is started or joined."""

import http.client
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]

from trainer.errors import ConfigError

TURNED_AWAY = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a cluster says of itself.

    Attributes:
        version: Of Ray; empty where it was not said.
        python: Version of its Python; empty where it was not said.
        nodes: Alive; 0 where only the dashboard was asked.
        resources: Of all nodes together.
        open_to_all: Whether it answered us without a token too; None where that was not tried.
    """

    version: str = ""
    python: str = ""
    nodes: int = 0
    resources: dict[str, float]
    open_to_all: bool | None = None

    def in_words(self) -> str:
        """For a person."""
        if not self.nodes:
            python = f" on Python {self.python}" if self.python else ""
            return f"the dashboard of Ray {self.version}{python}"
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
    if address.startswith("ray://"):
        raise ConfigError(
            "that is the port of Ray's client, which tells nothing: write it as host:6379 or "
            "http://host:8265"
        )
    host, _, port = address.rpartition("://")[2].rstrip("/").rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise ConfigError("write it as host:port or http://host:port")
    try:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"nobody answers there ({error})") from error
    if address.startswith(("http://", "https://")):
        return _dashboard(address.rstrip("/"), timeout_s)
    return _nodes(f"{host}:{port}", timeout_s)


def _dashboard(address: str, timeout_s: float) -> Seen:
    token = token_of(os.environ)
    try:
        version = json.loads(_get(f"{address}/api/version", token, timeout_s))["ray_version"]
        more = json.loads(_get(f"{address}/api/v0/cluster_metadata", token, timeout_s))["data"]
        return Seen(
            version=version,
            python=more["pythonVersion"],
            resources={},
            open_to_all=_is_open(f"{address}/api/jobs/", timeout_s),
        )
    except urllib.error.HTTPError as error:
        if error.code in TURNED_AWAY:
            ours = (
                "our token is not its token"
                if token
                else ("it asks for a token, and there is none here")
            )
            raise ConfigError(
                f"it answers {error.code}: {ours}. Set RAY_AUTH_TOKEN to the cluster's, or "
                "RAY_AUTH_TOKEN_PATH to a file that holds it"
            ) from error
        raise ConfigError(f"it answers {error.code}, as no dashboard of Ray does") from error
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"what answers there is no dashboard of Ray ({error})") from error


def token_of(environment: Mapping[str, str]) -> str:
    """The token for a cluster, looked for where Ray looks, in its order; empty if there is none.

    Raises:
        ConfigError: RAY_AUTH_TOKEN_PATH names a file that cannot be read.
    """
    if token := environment.get("RAY_AUTH_TOKEN", "").strip():
        return token
    named = environment.get("RAY_AUTH_TOKEN_PATH", "")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        if not named:
            return ""
        raise ConfigError(
            f"RAY_AUTH_TOKEN_PATH names {named}, which cannot be read ({error.strerror})"
        ) from error


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
