"""What the compose and `ray up` files name is there: hosts, ports, volumes, files, users, buckets.

Their schemas know none of that (test_infra_schemas.py).
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.infra_files import COMPOSE, COMPOSE_CUDA, INFRA, RAY_UP, bytes_of, planted, read
from tests.unit.test_infra_names import SLACK_S, ray_source, told

HOST = re.compile(r"([a-zA-Z][\w.-]*|\d+(?:\.\d+){3}):(\d{2,5})\b")
HERE = {"localhost", "127.0.0.1"}
RUN_OPTIONS = {"init", "shm-size", "stop-timeout", "ulimit", "volume", "env", "gpus"}  # of docker


def words_of(service: dict[str, Any]) -> list[str]:
    """All that a service says: its command, its check, its variables."""
    return [
        *service.get("command", []),
        *service.get("healthcheck", {}).get("test", []),
        *service.get("environment", {}).values(),
    ]


def image_folders() -> list[str]:
    """The folders of the image that its user may write; a volume over another one is root's."""
    text = (INFRA / "Dockerfile").read_text(encoding="utf-8")
    (made,) = re.findall(r"install --directory --owner=longrow (.+)$", text, re.MULTILINE)
    return made.split()


def listening(service: dict[str, Any]) -> set[int]:
    """The ports at which a service listens: what its command says, or its image by itself."""
    said = " ".join(service.get("command", []))
    return {5432} if service["image"].startswith("postgres:") else ports_in(said)


def ports_in(command: str) -> set[int]:
    return {int(port) for port in re.findall(r"port=(\d+)", command)}


def compose_faults(document: dict[str, Any]) -> Iterator[str]:
    """What is wrong with how the services speak of each other."""
    services = document["services"]
    for name, service in services.items():
        yield from (f"{name}: {fault}" for fault in host_faults(service, services))
        for other, how in service.get("depends_on", {}).items():
            if other not in services:
                yield f"{name}: it depends on {other}, which is no service"
            elif how["condition"] == "service_healthy" and "healthcheck" not in services[other]:
                yield f"{name}: {other} says of itself whether it is healthy, by nothing"
        yield from one_fault(name, service)
    yield from volume_faults(services, set(document["volumes"]))
    yield from database_faults(services)


def host_faults(service: dict[str, Any], services: dict[str, Any]) -> Iterator[str]:
    """Whom it calls, and nobody answers."""
    for host, port in HOST.findall(" ".join(words_of(service))):
        other = service if host in HERE else services.get(host)
        if other is None:
            yield f"nobody is called {host}"
        elif int(port) not in listening(other):
            yield f"nobody listens at {host}:{port}"


def volume_faults(services: dict[str, Any], made: set[str]) -> Iterator[str]:
    """Which volumes are not there, or are mounted where nobody looks."""
    used: set[str] = set()
    for name, service in services.items():
        for volume in service.get("volumes", []):
            source, target = re.sub(r"\$\{.*?\}", "./", volume).split(":")[:2]
            used |= {source} if source.isidentifier() else set()
            if service["image"].startswith("longrow:") and target not in image_folders():
                yield f"{name}: {target} is no folder of the image"
    if used != made:
        yield f"volumes: {sorted(used ^ made)} are named once only"


def one_fault(name: str, service: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a service by itself."""
    words = [*service.get("command", []), "", *service.get("healthcheck", {}).get("test", [])]
    for flag, code in pairwise(words):
        if flag == "-c":
            try:
                compile(code, name, "exec")
            except SyntaxError:
                yield f"{name}: no Python: {code}"
    if not service["image"].startswith("longrow:"):
        return
    if service.get("cap_drop") != ["ALL"]:
        yield f"{name}: it keeps capabilities"
    if service.get("security_opt") != ["no-new-privileges:true"]:
        yield f"{name}: it may take new privileges"
    environment = service["environment"]
    if service["command"][0] == "ray" and (
        environment.get("RAY_AUTH_MODE") != "token" or "RAY_AUTH_TOKEN" not in environment
    ):
        yield f"{name}: Ray asks for no token"


def database_faults(services: dict[str, Any]) -> Iterator[str]:
    """Whether MLflow comes to its database and its bucket."""
    its, mlflow = services["postgres"]["environment"], services["mlflow"]["environment"]
    uri = urlsplit(mlflow["MLFLOW_BACKEND_STORE_URI"])
    if uri.password:
        yield "mlflow: a password stands in an address"
    user = {
        uri.username,
        *re.findall(r"--username=(\w+)", " ".join(words_of(services["postgres"]))),
    }
    if user != {its["POSTGRES_USER"]}:
        yield f"the users of PostgreSQL are {sorted(map(str, user))}"
    name = {uri.path[1:], *re.findall(r"--dbname=(\w+)", " ".join(words_of(services["postgres"])))}
    if name != {its["POSTGRES_DB"]}:
        yield f"the databases of PostgreSQL are {sorted(name)}"
    if mlflow["PGPASSWORD"] != its["POSTGRES_PASSWORD"]:
        yield "MLflow has another password than PostgreSQL"
    bucket = urlsplit(mlflow["MLFLOW_ARTIFACTS_DESTINATION"]).netloc
    if set(re.findall(r"'(\w+)'", services["bucket"]["command"][-1])) != {bucket}:
        yield f"nobody makes the bucket {bucket}"


def ray_up_faults(document: dict[str, Any]) -> Iterator[str]:
    """What is wrong with how the parts of the cluster file speak of each other."""
    options = document["docker"]["run_options"]
    names = [option.removeprefix("--").partition("=")[0] for option in options]
    yield from (f"docker run knows no --{name}" for name in names if name not in RUN_OPTIONS)
    given = {name: option.partition("=")[2] for name, option in zip(names, options, strict=True)}
    environment = dict(
        option.removeprefix("--env=").split("=", 1) for option in options if "--env=" in option
    )
    if environment.get("RAY_AUTH_MODE") != "token":
        yield "Ray asks for no token"
    if environment.get("RAY_AUTH_TOKEN_PATH") not in document["file_mounts"]:
        yield "nobody brings the token to where it is looked for"
    if float(given["stop-timeout"]) < float(environment["RAY_JOB_STOP_WAIT_TIME_S"]) + SLACK_S:
        yield "docker waits shorter than a job may take to stop"
    if len(document["provider"]["worker_ips"]) != document["max_workers"]:
        yield "max_workers is another number than that of the addresses"
    yield from start_faults(document, shared_bytes=bytes_of(given["shm-size"]))


def start_faults(document: dict[str, Any], *, shared_bytes: float) -> Iterator[str]:
    """What is wrong with the commands that start Ray on the machines."""
    starts = {role: document[f"{role}_start_ray_commands"] for role in ("head", "worker")}
    for role, commands in starts.items():
        said = " ".join(commands)
        for command in commands:
            if wrong := told(command.split()):
                yield f"{role}: {wrong}"
        for variable in re.findall(r"\$(\w+)", said):
            if f'"{variable}"' not in ray_source("autoscaler"):
                yield f"{role}: {variable} is set by nobody"
        (store,) = re.findall(r"--object-store-memory=(\d+)", said)
        if int(store) >= shared_bytes:
            yield f"{role}: its objects do not fit into its shared memory"
    head, worker = " ".join(starts["head"]), " ".join(starts["worker"])
    if f"--port={re.findall(r'--address=.+?:([0-9]+)', worker)[0]} " not in head:
        yield "the head listens at another port than the workers call"
    if "--dashboard-host=127.0.0.1" not in head:
        yield "the dashboard listens to others"


def test_the_services_find_each_other() -> None:
    assert list(compose_faults(read(COMPOSE))) == []


def test_the_gpu_file_speaks_of_services_that_there_are() -> None:
    assert set(read(COMPOSE_CUDA)["services"]) <= set(read(COMPOSE)["services"])


def test_the_machines_of_ray_up_find_each_other() -> None:
    assert list(ray_up_faults(read(RAY_UP))) == []


START = "ray start --object-store-memory=1 --address={}"
MLFLOW = "services.mlflow.environment"
PLANTED: list[tuple[Callable[[Any], Iterator[str]], Any, str, Any, str]] = [
    (compose_faults, read(COMPOSE), path, value, fault)
    for path, value, fault in [
        ("services.ray-worker.command.3", "--address=ray-hed:6379", "nobody is called ray-hed"),
        ("services.ray-worker.command.3", "--address=ray-head:6380", "at ray-head:6380"),
        ("services.bucket.environment.AWS_ENDPOINT_URL", "http://store:8334", "at store:8334"),
        (f"{MLFLOW}.AWS_ENDPOINT_URL", "http://stor:8333", "nobody is called stor"),
        (f"{MLFLOW}.MLFLOW_BACKEND_STORE_URI", "postgresql://mlflow@postgres:5433/mlflow", "5433"),
        (f"{MLFLOW}.MLFLOW_BACKEND_STORE_URI", "x://mlflow:pw@postgres:5432/mlflow", "a password"),
        (f"{MLFLOW}.MLFLOW_BACKEND_STORE_URI", "x://ml@postgres:5432/mlflow", "users"),
        (f"{MLFLOW}.MLFLOW_BACKEND_STORE_URI", "x://mlflow@postgres:5432/ml", "databases"),
        (f"{MLFLOW}.PGPASSWORD", "${OTHER:?}", "another password"),
        (f"{MLFLOW}.MLFLOW_ARTIFACTS_DESTINATION", "s3://longro/mlflow", "makes the bucket longro"),
        (f"{MLFLOW}.MLFLOW_SERVER_ALLOWED_HOSTS", "mlflo:5000", "nobody is called mlflo"),
        ("services.postgres.healthcheck.test.2", "--username=mlflw", "users"),
        ("services.store.healthcheck.test.4", "http://127.0.0.1:8334/healthz", "at 127.0.0.1:8334"),
        ("services.mlflow.healthcheck.test.3", "open('http://127.0.0.1:5001')", "127.0.0.1:5001"),
        ("services.bucket.command.2", "s3.exists('longrow'", "no Python"),
        ("services.ray-head.depends_on.mlflw", {"condition": "service_healthy"}, "no service"),
        ("services.mlflow.[healthcheck]", "x-check", "healthy, by nothing"),
        ("services.ray-head.volumes.0", "run:/runs", "named once only"),
        ("services.ray-head.volumes.0", "runs:/run", "no folder of the image"),
        ("services.mlflow.cap_drop", [], "keeps capabilities"),
        ("services.bucket.security_opt", [], "new privileges"),
        ("services.ray-head.environment.RAY_AUTH_MODE", "disabled", "asks for no token"),
        ("services.ray-worker.environment.[RAY_AUTH_TOKEN]", "TOKEN", "asks for no token"),
    ]
] + [
    (ray_up_faults, read(RAY_UP), path, value, fault)
    for path, value, fault in [
        ("docker.run_options.1", "--shm-sise=2g", "no --shm-sise"),
        ("docker.run_options.1", "--shm-size=900m", "do not fit"),
        ("docker.run_options.2", "--stop-timeout=130", "shorter than a job"),
        ("docker.run_options.6", "--env=RAY_AUTH_MODE=disabled", "asks for no token"),
        ("docker.run_options.7", "--env=RAY_AUTH_TOKEN_PATH=/token", "brings the token"),
        ("max_workers", 3, "max_workers"),
        ("head_start_ray_commands.0", "ray stopp", "head: No such command"),
        (
            "worker_start_ray_commands.1",
            START.format("$RAY_HEAD:6379"),
            "RAY_HEAD is set by nobody",
        ),
        ("worker_start_ray_commands.1", START.format("$RAY_HEAD_IP:6378"), "another port"),
        ("head_start_ray_commands.1", f"{START} --port=6379 --head", "listens to others"),
    ]
]


@pytest.mark.parametrize(
    ("check", "document", "path", "value", "fault"),
    PLANTED,
    ids=[f"{row[2]}-{row[3]}" for row in PLANTED],
)
def test_a_planted_mistake_is_seen(
    check: Callable[[Any], Iterator[str]], document: Any, path: str, value: Any, fault: str
) -> None:
    assert any(fault in found for found in check(planted(document, path, value)))
