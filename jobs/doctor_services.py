"""What the doctor asks other servers: Ray's cluster and MLflow's server."""

import http.client
import json
import platform
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from urllib.parse import urlsplit

from jobs.doctor import Finding
from jobs.doctor_storage import clock_finding
from jobs.mlflow_login import login
from trainer.errors import ConfigError
from trainer.settings import check_no_credentials

TIMEOUT_S = 10.0
RAY_DO = (
    "See that `ray start --head` runs there, the port is open, and RAY_AUTH_MODE and "
    "RAY_AUTH_TOKEN are the cluster's; or unset RAY_API_SERVER_ADDRESS and RAY_ADDRESS for a Ray "
    "of our own."
)
EXPERIMENTS = "/api/2.0/mlflow/experiments/search?max_results=1"


def ray_cluster(address: str, environment: Mapping[str, str]) -> list[Finding]:
    """Whether the cluster answers, and whether it asks who is there."""
    if not address:
        found = "no RAY_API_SERVER_ADDRESS or RAY_ADDRESS: a run starts a Ray of its own"
        return [Finding(name="ray", state="ok", found=found)]
    from jobs.cluster_look import look

    if wrong := password_in("--address", address, name="ray"):
        return wrong
    try:
        seen = look(address, timeout_s=TIMEOUT_S)
    except ConfigError as error:
        return [Finding(name="ray", state="wrong", found=f"{address}: {error.args[0]}", do=RAY_DO)]
    findings = [Finding(name="ray", state="ok", found=f"{address}: {seen.in_words()}")]
    if seen.version and seen.version != version("ray"):
        findings[0] = Finding(
            name="ray",
            state="wrong",
            found=f"{address} runs Ray {seen.version}, here is {version('ray')}",
            do="Install the cluster's version here, or ours there: Ray wants them equal.",
        )
    if seen.python and minor(seen.python) != minor(platform.python_version()):
        findings.append(
            Finding(
                name="ray python",
                state="note",
                found=f"{address} runs Python {seen.python}, here is {platform.python_version()}",
                do="`longrow submit` does not mind; who joins the cluster from here needs its own.",
            )
        )
    asks = environment.get("RAY_AUTH_MODE") == "token"
    if asks if seen.open_to_all is None else not seen.open_to_all:
        return [*findings, Finding(name="ray token", state="ok", found="asked for, and taken")]
    return [
        *findings,
        Finding(
            name="ray token",
            state="note",
            found="Ray asks nobody for a token: who reaches its ports can run code there",
            do="Start it with RAY_AUTH_MODE=token and a random RAY_AUTH_TOKEN, set here too.",
        ),
    ]


def password_in(key: str, address: str, *, name: str) -> list[Finding]:
    """What is wrong with an address that says too much; it is not repeated."""
    try:
        check_no_credentials(key, address)
    except ConfigError as error:
        return [Finding(name=name, state="wrong", found="a password in its address", do=str(error))]
    return []


def minor(python: str) -> list[str]:
    """Of 3.11.7, what must be equal for two Pythons to understand each other."""
    return python.split(".")[:2]


def mlflow_server(uri: str, environment: Mapping[str, str]) -> list[Finding]:
    """Whether MLflow answers, lets us in by that name, and has our time."""
    name = "mlflow"
    if wrong := password_in("MLFLOW_TRACKING_URI", uri, name=name):
        return wrong
    if not uri:
        found = "no MLFLOW_TRACKING_URI: runs are recorded in a SQLite file beside them"
        return [Finding(name=name, state="ok", found=found)]
    if uri.startswith("file:") or "://" not in uri:
        return [
            Finding(
                name=name,
                state="wrong",
                found=f"{uri} is a folder, which MLflow 3 no longer writes to",
                do="Use sqlite:///PATH/mlflow.db, or the address of a server.",
            )
        ]
    if not uri.startswith(("http://", "https://")):
        return [Finding(name=name, state="note", found=f"{uri}: no server, not tried", do="")]
    try:
        return _ask(uri.rstrip("/"), environment)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return [
            Finding(
                name=name,
                state="wrong",
                found=f"{uri} does not answer: {reason}",
                do="Start it (mlflow server --port 5000), open the port, or correct "
                "MLFLOW_TRACKING_URI.",
            )
        ]


def _ask(uri: str, environment: Mapping[str, str]) -> list[Finding]:
    request = urllib.request.Request(uri + EXPERIMENTS, headers=login(environment))  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            date, body = answer.headers.get("Date"), answer.read()
    except urllib.error.HTTPError as error:
        return [_turned_away(uri, error.code, error.read().decode(errors="replace"))]
    told = json.loads(body)
    if not isinstance(told, dict) or set(told) - {"experiments", "next_page_token"}:
        found = f"{uri} answers, and not as MLflow does: {body[:60]!r}"
        do = "Name the address of MLflow itself, with its prefix if it has one."
        return [Finding(name="mlflow", state="wrong", found=found, do=do)]
    findings = [Finding(name="mlflow", state="ok", found=f"{uri} lets us in")]
    if date:
        ahead = parsedate_to_datetime(date).timestamp() - time.time()
        findings.append(clock_finding("mlflow clock", uri, ahead))
    return findings


def _turned_away(uri: str, code: int, text: str) -> Finding:
    host = urlsplit(uri).netloc
    if code == 403 and "host" in text.lower():
        return Finding(
            name="mlflow",
            state="wrong",
            found=f"{uri} answers 403: its host check does not know the name {host}",
            do=f"Start it with --allowed-hosts {host},localhost:* or set "
            "MLFLOW_SERVER_ALLOWED_HOSTS there.",
        )
    if code in (401, 403):
        return Finding(
            name="mlflow",
            state="wrong",
            found=f"{uri} answers {code}: it does not take who we are",
            do="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN.",
        )
    return Finding(
        name="mlflow",
        state="wrong",
        found=f"{uri} answers {code}: {text[:100]!r}",
        do="Look into the server's log; a server of MLflow 3 is wanted.",
    )
