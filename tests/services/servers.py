"""What the services tests start, each on a free loopback port, and end by its own process id."""

import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ranks import free_port

PAGE = Path(__file__).parents[2] / "docs" / "tracking.md"
WAIT_S = 120.0
QUIET = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}


@contextmanager
def mlflow_server(
    folder: Path,
    *,
    database: str,
    artifacts: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """MLflow's own server, as docs/tracking.md starts it; gives its address."""
    port = free_port()
    ours = {"port": port, "backend-store-uri": database, "artifacts-destination": artifacts}
    command = [sys.executable, "-m"]
    for word in command_told(database.partition("://")[0]):
        name = word.removeprefix("--").partition("=")[0]
        command.append(f"--{name}={ours[name]}" if name in ours else word)
    uri = f"http://127.0.0.1:{port}"
    with _process(command, folder / "mlflow.log", QUIET | dict(environment or {})) as server:
        _await_answer(f"{uri}/health", server, folder / "mlflow.log")
        yield uri


def command_told(kind: str) -> list[str]:
    """The words by which docs/tracking.md starts a server with such a database."""
    text = re.sub(r"\\\n\s*", "", PAGE.read_text(encoding="utf-8"))
    (line,) = re.findall(
        rf"^mlflow server .*--backend-store-uri={re.escape(kind)}:.*$", text, re.MULTILINE
    )
    return shlex.split(line)


@contextmanager
def s3_server(folder: Path, *, bucket: str) -> Iterator[dict[str, str]]:
    """An S3 server in memory (moto) with a bucket; gives the environment that leads to it."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "--host=127.0.0.1", f"--port={port}"]
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "MLFLOW_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "here",
        "AWS_SECRET_ACCESS_KEY": "here",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with _process(command, folder / "s3.log", {}) as server:
        _await_answer(environment["AWS_ENDPOINT_URL"], server, folder / "s3.log")
        s3_client(environment).create_bucket(Bucket=bucket)
        yield environment


def s3_client(environment: Mapping[str, str]) -> Any:
    """Speaks to the server of `s3_server`."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_DEFAULT_REGION"],
    )


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL cluster of its own, of Debian's package; gives its address for SQLAlchemy.

    It refuses to run as root: root starts it as `nobody`.
    """
    tools = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    root = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # nobody must be able to enter it
    as_user: dict[str, Any] = {}
    if os.getuid() == 0:
        user = pwd.getpwnam("nobody")
        os.chown(root, user.pw_uid, user.pw_gid)
        as_user = {"user": user.pw_uid, "group": user.pw_gid}
    port, data = free_port(), root / "data"
    try:
        subprocess.run(
            [
                tools / "initdb",
                "-D",
                data,
                "-U",
                "mlflow",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--no-sync",
            ],
            check=True,
            capture_output=True,
            cwd=root,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            **as_user,
        )
        command = [tools / "postgres", "-D", data, "-p", str(port), "-k", root, "-F"]
        command += ["-c", "listen_addresses=127.0.0.1"]
        with _process([str(word) for word in command], root / "log", {}, **as_user) as server:
            ready = [tools / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
            until = time.monotonic() + WAIT_S
            while subprocess.run(ready, check=False, capture_output=True).returncode:
                assert server.poll() is None, (root / "log").read_text()
                assert time.monotonic() < until, (root / "log").read_text()
                time.sleep(0.2)
            yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _process(
    command: list[str], log: Path, environment: Mapping[str, str], **who: Any
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as told:
        process = subprocess.Popen(
            command,
            stdout=told,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env=os.environ | dict(environment),
            **who,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_answer(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own loopback port
                return
        except OSError:
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.3)
