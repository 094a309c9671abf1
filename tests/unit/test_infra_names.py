"""Every command, image, port, variable and version in infra/ is one that the project has."""

import importlib
import importlib.metadata
import re
import shlex
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import mlflow.environment_variables
import pytest
import ray
from ray.scripts.scripts import cli as ray_cli

from jobs import gpu
from jobs.cli import COMMANDS
from jobs.config import keys, read_config
from tests.infra_files import (
    COMPOSE,
    INFRA,
    ROOT,
    Container,
    bytes_of,
    containers,
    objects,
    pod_templates,
    read,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of MLflow about its own types
    from mlflow.cli import cli as mlflow_cli

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
)
STOP_JOBS = "/opt/longrow/stop_jobs.py"
WAIT = "/opt/longrow/wait_for_workers.py"
# Images of others, and variables that neither Ray nor MLflow reads.
STRANGERS = {"postgres:17.6-bookworm", "chrislusf/seaweedfs:4.48"}
OTHER_VARIABLES = {
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ENDPOINT_URL",
    "AWS_DEFAULT_REGION",
    "DO_NOT_TRACK",  # of MLflow, which says "true" where others say "1"
    "PGPASSWORD",
    "POSTGRES_USER",
    "POSTGRES_DB",
    "POSTGRES_PASSWORD",
}
SECRET = re.compile(r"(TOKEN|PASSWORD|SECRET|ACCESS_KEY)(?!.*PATH)")
SLACK_S = 20  # of a grace period above the time that Ray leaves a job
CONTAINERS = {one.where: one for one in containers()}


def told(command: Sequence[str]) -> str:
    """What is wrong with a command line; empty if it would be understood."""
    words = list(command)
    if words == ["longrow", "--help"]:
        return ""
    try:
        if words[0] == "ray":
            _parse(ray_cli, words)
        elif words[0] == "mlflow":
            _parse(mlflow_cli, words)
        elif words[0] == "longrow":
            _ours(words[1], words[2:])
        elif words[:2] == ["python", "-m"]:
            room, _, name = words[2].partition(".")
            if room != "jobs":
                return f"{words[2]} is no command of ours"
            _ours(name.replace("_", "-"), words[3:])
        elif words[0] == "python":
            return "" if words[1] in ("-c", STOP_JOBS, WAIT) else f"{words[1]} is not in the image"
        else:
            return f"{words[0]} is nobody's command"
    except (click.ClickException, KeyError) as error:
        return str(error)
    return ""


def _parse(command: click.Command, words: list[str]) -> None:
    while isinstance(command, click.Group):
        _, named, words = command.resolve_command(click.Context(command), words[1:])
        assert named is not None
        command, words = named, ["", *words]
    parsed = command.make_context(command.name, words[1:])
    # `ray job submit -- COMMAND` and `ray exec FILE 'COMMAND'` carry another one.
    inner = list(parsed.params.get("entrypoint") or shlex.split(parsed.params.get("cmd") or ""))
    if inner and (wrong := told(inner)):
        raise click.UsageError(wrong)


def _ours(name: str, arguments: list[str]) -> None:
    if name == "gpu":
        if unknown := gpu.options().parse_known_args(arguments)[1]:
            raise click.UsageError(f"python -m jobs.gpu knows no {' '.join(unknown)}")
        return
    if name not in COMMANDS:
        raise click.UsageError(f"longrow {name} is no command of ours")
    command = importlib.import_module(f"jobs.{name.replace('-', '_')}").command
    context = command.make_context(name, list(arguments))
    for word in context.params.get("sets", ()):
        if word.partition("=")[0] not in keys():
            raise click.UsageError(f"--set {word}: no such key")


@cache
def ray_source(*folders: str) -> str:
    home = Path(str(ray.__file__)).parent
    folders = folders or ("_private", "_common", "dashboard")
    paths = [path for folder in folders for path in (home / folder).rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


@cache
def mlflow_variables() -> set[Any]:
    return {
        *dir(mlflow.environment_variables),
        *(
            option.envvar
            for option in mlflow_cli.commands["server"].params
            if isinstance(option, click.Option)
        ),
    }


def variable_is_known(name: str) -> bool:
    """Whether Ray, MLflow or what they stand on reads a variable."""
    if name.startswith("RAY_"):
        return name in ray_source()
    return name in mlflow_variables() or name in OTHER_VARIABLES


def faults(one: Container) -> Iterator[str]:
    """What is wrong with a container."""
    ours = one.image in (f"longrow:{VERSION}", f"longrow:{VERSION}-cuda")
    if not ours and one.image not in STRANGERS:
        yield f"image {one.image} is none of ours"
    if ours and one.command and (wrong := told(one.command)):
        yield f"command: {wrong}"
    for name, value in one.environment.items():
        if not variable_is_known(name):
            yield f"variable {name} is read by nobody"
        if SECRET.search(name) and not value.startswith("${"):
            yield f"variable {name} holds a secret"
    if one.environment.get("RAY_USAGE_STATS_ENABLED", "0") != "0":
        yield "telemetry of Ray is on"
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        if one.environment.get(name, "true") != "true":
            yield f"telemetry of MLflow is on: {name} must be the word true"
    yield from port_faults(one)


def port_faults(one: Container) -> Iterator[str]:
    """Ports that a container names and nobody listens at."""
    # KubeRay writes the command of a Ray node itself.
    said = " ".join(one.command) or "--port=6379 --dashboard-port=8265"
    listening = {int(port) for port in re.findall(r"port=(\d+)", said)}
    yield from (f"port {port} is nobody's" for port in one.ports if port not in listening)
    uri = one.environment.get("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    if not uri.endswith(":5000"):
        yield f"MLflow does not listen at {uri}"


@pytest.mark.parametrize("where", CONTAINERS)
def test_each_container_is_made_of_what_there_is(where: str) -> None:
    assert list(faults(CONTAINERS[where])) == []


HEAD, MLFLOW = CONTAINERS["compose.yaml: ray-head"], CONTAINERS["mlflow.yaml: mlflow"]


@pytest.mark.parametrize(
    ("one", "change", "fault"),
    [
        (HEAD, {"image": "longrow:0.0.9"}, "image longrow:0.0.9"),
        (HEAD, {"image": "longrow:latest"}, "image longrow:latest"),
        (HEAD, {"command": ["ray", "start", "--haed"]}, "command: No such option"),
        (HEAD, {"command": ["ray", "begin"]}, "command: No such command"),
        (MLFLOW, {"command": ["mlflow", "server", "--prot=5000"]}, "command: No such option"),
        (HEAD, {"command": ["python", "-m", "jobs.trian"]}, "command: longrow trian"),
        (HEAD, {"command": ["longrow", "train", "--resum", "must"]}, "command: No such option"),
        (HEAD, {"command": ["longrow", "train", "x", "--set", "cluster.adress=a"]}, "no such key"),
        (HEAD, {"command": ["python", "/opt/longrow/stop.py"]}, "is not in the image"),
        (HEAD, {"environment": {"RAY_AUTH_MODUS": "token"}}, "variable RAY_AUTH_MODUS"),
        (HEAD, {"environment": {"MLFLOW_TRACKING_URL": "x"}}, "variable MLFLOW_TRACKING_URL"),
        (HEAD, {"environment": {"RAY_AUTH_TOKEN": "abc"}}, "holds a secret"),
        (HEAD, {"environment": {"RAY_USAGE_STATS_ENABLED": "1"}}, "telemetry of Ray"),
        (HEAD, {"environment": {"DO_NOT_TRACK": "1"}}, "telemetry of MLflow"),
        (HEAD, {"environment": {"MLFLOW_TRACKING_URI": "http://mlflow:500"}}, "does not listen"),
        (HEAD, {"ports": [8256]}, "port 8256 is nobody's"),
        (MLFLOW, {"ports": [8265]}, "port 8265 is nobody's"),
    ],
)
def test_a_planted_mistake_in_a_container_is_seen(
    one: Container, change: dict[str, Any], fault: str
) -> None:
    assert any(fault in found for found in faults(replace(one, **change)))


def commands_told() -> list[str]:
    """The command lines in the heads of the files, in infra/README.md and in docs/cluster.md."""
    lines = [one["spec"]["entrypoint"] for _, one in objects() if one["kind"] == "RayJob"]
    pages = [INFRA / "README.md", ROOT / "docs" / "cluster.md"]
    for path in [*INFRA.rglob("*.yaml"), *pages, INFRA / "Dockerfile"]:
        text = re.sub(r"\\\n#?\s*", " ", path.read_text(encoding="utf-8"))
        spans = re.findall(r"`([^`\n]+)`|^#   (.+)$|^((?:longrow|ray) .+)$", text, re.MULTILINE)
        told_here = [quoted or indented or of_block for quoted, indented, of_block in spans]
        lines += [(line.partition(" exec ray-head ")[2] or line).strip() for line in told_here]
    # With a path or an option in it; `ray up` alone is a name.
    return [line for line in lines if re.match("(longrow|ray|mlflow|python) .*[/-]", line)]


def test_each_command_line_that_is_told_would_be_understood() -> None:
    lines = commands_told()
    assert len(lines) >= 16
    wrong = {line: told(shlex.split(line)) for line in lines}
    assert {line: why for line, why in wrong.items() if why} == {}


def test_versions_are_the_pinned_ones() -> None:
    for _, one in objects():
        spec = one.get("spec", {})
        if version := spec.get("rayClusterSpec", spec).get("rayVersion"):
            assert version == PINS["ray"]


def test_the_job_brings_the_cluster_that_stays() -> None:
    by_kind = {one["kind"]: one for _, one in objects()}
    assert by_kind["RayJob"]["spec"]["rayClusterSpec"] == by_kind["RayCluster"]["spec"]


def graces() -> dict[str, tuple[float, float]]:
    """Of each node of a Ray: its grace, and the time that Ray leaves a job to stop, in s."""
    found: dict[str, tuple[Any, dict[str, str]]] = {}
    for name in ("ray-head", "ray-worker"):
        service = read(COMPOSE)["services"][name]
        found[name] = (service["stop_grace_period"], service["environment"])
    for file, one in objects():
        if one["kind"] in ("RayCluster", "RayJob"):
            for name, group in pod_templates(one).items():
                pod = group["template"]["spec"]
                environment = {pair["name"]: pair["value"] for pair in pod["containers"][0]["env"]}
                found[f"{file} {name}"] = (pod["terminationGracePeriodSeconds"], environment)
    return {
        where: (float(str(grace).rstrip("s")), float(environment["RAY_JOB_STOP_WAIT_TIME_S"]))
        for where, (grace, environment) in found.items()
    }


def test_a_node_waits_longer_than_a_job_may_take_to_stop() -> None:
    assert len(graces()) == 6
    assert {where for where, (grace, job) in graces().items() if grace < job + SLACK_S} == set()


def hooks() -> dict[str, tuple[list[str], str]]:
    """What each node of a Ray runs before it ends, and the address that this is told."""
    found: dict[str, tuple[list[str], str]] = {}
    for name in ("ray-head", "ray-worker"):
        (hook,) = read(COMPOSE)["services"][name]["pre_stop"]
        told_to = hook.get("environment", {}).get("RAY_API_SERVER_ADDRESS", "")
        found[name] = (hook["command"], told_to)
    for file, one in objects():
        if one["kind"] in ("RayCluster", "RayJob"):
            for name, group in pod_templates(one).items():
                hook = group["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]
                found[f"{file} {name}"] = (hook["exec"]["command"], "")
    return found


def test_no_node_of_a_run_ends_before_the_run_has_its_checkpoint() -> None:
    """Compose ends who depends on another first, and Kubernetes all pods of a cluster at once."""
    assert "ray-head" in read(COMPOSE)["services"]["ray-worker"]["depends_on"]
    stop, wait = ["python", STOP_JOBS], ["python", WAIT]
    assert hooks() == {
        "ray-head": (stop, ""),
        "ray-worker": (stop, "http://ray-head:8265"),
        "raycluster.yaml head": (stop, ""),
        "raycluster.yaml workers": (wait, ""),
        "rayjob.yaml head": (stop, ""),
        "rayjob.yaml workers": (wait, ""),
    }


def test_shared_memory_holds_the_object_store() -> None:
    for name in ("ray-head", "ray-worker"):
        service = read(COMPOSE)["services"][name]
        (store,) = re.findall(r"--object-store-memory=(\d+)", " ".join(service["command"]))
        assert int(store) < bytes_of(service["shm_size"])
    for _, one in objects():
        if one["kind"] in ("RayCluster", "RayJob"):
            for group in pod_templates(one).values():
                shm = group["template"]["spec"]["volumes"][0]["emptyDir"]
                assert shm["medium"] == "Memory"
                store = int(group["rayStartParams"]["object-store-memory"])
                assert store < bytes_of(shm["sizeLimit"])


def test_mlflow_knows_the_name_it_is_called_by() -> None:
    for one in CONTAINERS.values():
        if allowed := one.environment.get("MLFLOW_SERVER_ALLOWED_HOSTS"):
            assert {"mlflow:5000", "localhost:5000"} <= set(allowed.split(","))
            assert one.command[:2] == ["mlflow", "server"]
    assert "mlflow" in read(COMPOSE)["services"]
    services = [one for _, one in objects() if one["kind"] == "Service"]
    assert [(one["metadata"]["name"], one["spec"]["ports"][0]["port"]) for one in services] == [
        ("mlflow", 5000)
    ]


def test_compose_asks_for_the_variables_that_the_example_lists() -> None:
    asked = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text(encoding="utf-8")))
    example = (INFRA / "compose.env.example").read_text(encoding="utf-8")
    listed = dict(line.split("=") for line in example.splitlines() if not line.startswith("#"))
    assert asked == set(listed)
    assert not [name for name, value in listed.items() if SECRET.search(name) and value]


def test_everything_is_published_on_loopback_alone() -> None:
    services = read(COMPOSE)["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_example_run_is_a_config_that_is_read(tmp_path: Path) -> None:
    (one,) = [one for _, one in objects() if one["kind"] == "ConfigMap"]
    path = tmp_path / "run.toml"
    path.write_text(one["data"]["run.toml"], encoding="utf-8")
    config = read_config(path, sets=["cluster.address=auto"])
    job = next(one for _, one in objects() if one["kind"] == "RayJob")
    workers = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert config.cluster.workers == sum(group["replicas"] for group in workers)
    assert importlib.metadata.version("ray") == PINS["ray"]
