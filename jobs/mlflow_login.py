"""What opens an MLflow server to us, looked for where MLflow's client looks, in its order."""

import base64
import configparser
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

NAMES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
TOKEN = "MLFLOW_TRACKING_TOKEN"  # noqa: S105 - its name
# What else it sends along with each call to a server.
OTHERS = (
    "MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_TRACKING_CLIENT_CERT_PATH",
)  # fmt: skip
FILE = "~/.mlflow/credentials"


def has_login(environment: Mapping[str, str]) -> bool:
    """Whether a server that MLflow calls would be sent anything."""
    return _file().exists() or any(environment.get(name) for name in (*NAMES, TOKEN, *OTHERS))


def login(environment: Mapping[str, str]) -> dict[str, str]:
    """The header by which it says who we are; empty where there is none."""
    file = configparser.ConfigParser()
    held: dict[str, str] = {}
    with suppress(OSError, configparser.Error, UnicodeDecodeError):  # MLflow says what is wrong
        file.read(_file())
        held = dict(file.items("mlflow"))
    user, password = (environment.get(name) or held.get(name.lower()) for name in NAMES)
    if user and password:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    if token := environment.get(TOKEN):
        return {"Authorization": f"Bearer {token}"}
    return {}


def _file() -> Path:
    return Path(os.path.expanduser(FILE))  # noqa: PTH111 - as it is where there is no home
