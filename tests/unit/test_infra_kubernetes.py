"""What one Kubernetes object names is in another: volumes, secrets, ports, labels, paths.

Their schemas know none of that (test_infra_schemas.py). Secrets are made by a command that stands
at the top of a file.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from jobs.config import read_config
from jobs.shared_paths import places
from tests.infra_files import INFRA, MANIFESTS, objects, planted, pod_templates

TOKEN_KEY = "auth_token"  # noqa: S105 - the key in the secret that KubeRay's operator reads
OBJECTS = [one for _, one in objects()]
HEADS = "\n".join(path.read_text("utf-8") for path in [*MANIFESTS, INFRA / "README.md"])


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def pods(found: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod's spec, with the name of what makes it."""
    for one in found:
        if one["kind"] in ("RayCluster", "RayJob"):
            for name, group in pod_templates(one).items():
                yield f"{one['kind']}.{name}", group["template"]["spec"]
        elif one["kind"] == "Deployment":
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    return {pair["name"]: pair["value"] for pair in container["env"]}


def faults(found: list[dict[str, Any]], heads: str = HEADS) -> Iterator[str]:
    """What is wrong with how the objects speak of each other."""
    for where, pod in pods(found):
        yield from (f"{where}: {fault}" for fault in pod_faults(pod, found))
    yield from secret_faults(found, heads)
    for name, claim in of_kind(found, "PersistentVolumeClaim").items():
        if claim["spec"]["accessModes"] != ["ReadWriteMany"]:
            yield f"{name}: several nodes write it"
    yield from server_faults(found)
    yield from job_faults(of_kind(found, "RayJob"), of_kind(found, "ConfigMap"))
    for kind, name in re.findall(r"kubectl (?:delete|port-forward) (\w+)[ /]([\w-]+)", heads):
        if name not in of_kind(found, {"rayjob": "RayJob", "service": "Service"}[kind]):
            yield f"{kind} {name} is told of, and there is none"


def secret_faults(found: list[dict[str, Any]], heads: str) -> Iterator[str]:
    """Which secrets are asked for and not told of, or told of and not asked for."""
    lines = re.findall(r"kubectl create secret generic (\S+)", heads)
    asked = {
        one["secretRef"]["name"]
        for _, pod in pods(found)
        for container in pod["containers"]
        for one in container["envFrom"]
    }
    for one in found:
        if one["kind"] in ("RayCluster", "RayJob"):
            options = one["spec"].get("rayClusterSpec", one["spec"])["authOptions"]
            asked.add(options["secretName"])
            if options["mode"] != "token":
                yield f"{one['kind']}: Ray asks for no token"
    if asked != set(lines):
        yield f"secrets: {sorted(asked ^ set(lines))} are only made, or only asked for"
    if f"--from-file={TOKEN_KEY}=" not in heads:
        yield f"secrets: the token's key must be {TOKEN_KEY}"
    for line in re.findall(r"openssl rand .*", heads):
        if "tr -d '\\n'" not in line:  # KubeRay's operator puts it into a header as it stands
            yield f"secrets: the token ends with a line end: {line}"


def pod_faults(pod: dict[str, Any], found: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with a pod."""
    (container,) = pod["containers"]
    volumes = {one["name"]: one for one in pod.get("volumes", [])}
    mounts = {one["name"]: one["mountPath"] for one in container.get("volumeMounts", [])}
    if set(volumes) != set(mounts):
        yield f"volumes {sorted(set(volumes) ^ set(mounts))} are named once only"
    for name, volume in volumes.items():
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim and claim not in of_kind(found, "PersistentVolumeClaim"):
            yield f"there is no claim {claim}"
        config = volume.get("configMap", {}).get("name")
        if config and config not in of_kind(found, "ConfigMap"):
            yield f"there is no ConfigMap {config}"
        if "emptyDir" in volume and mounts.get(name) != "/dev/shm":
            yield "its shared memory is mounted elsewhere"
    uri = urlsplit(environment_of(container).get("MLFLOW_TRACKING_URI", ""))
    services = {
        (name, one["spec"]["ports"][0]["port"]) for name, one in of_kind(found, "Service").items()
    }
    if uri.netloc and (uri.hostname, uri.port) not in services:
        yield f"nobody listens at {uri.netloc}"
    if urlsplit(environment_of(container).get("MLFLOW_BACKEND_STORE_URI", "")).password:
        yield "a password stands in an address"
    locked = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    user = pod["securityContext"]
    if (
        container["securityContext"] != locked
        or not user["runAsNonRoot"]
        or user.get("seccompProfile") != {"type": "RuntimeDefault"}
        or pod.get("automountServiceAccountToken") is not False
    ):
        yield "it may do more than it must"


def server_faults(found: list[dict[str, Any]]) -> Iterator[str]:
    """Whether who calls MLflow's service comes to its server, and the probes too."""
    (service,), (server,) = (of_kind(found, kind).values() for kind in ("Service", "Deployment"))
    template = server["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    if not service["spec"]["selector"].items() <= labels:
        yield "the Service finds no pod"
    if not server["spec"]["selector"]["matchLabels"].items() <= labels:
        yield "the Deployment finds no pod"
    (container,) = template["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("readiness", "liveness", "startup")]
    for port in (service["spec"]["ports"][0]["targetPort"], *(one["port"] for one in probes)):
        if f"--port={ports.get(port)}" not in container["command"]:
            yield f"the server does not listen at port {port}"
    if {one["path"] for one in probes} != {"/health"}:
        yield "a probe asks for another page than /health"
    if template["spec"].get("enableServiceLinks", True):
        yield "the Service would set MLFLOW_PORT"


def job_faults(
    jobs: dict[str, dict[str, Any]], configs: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Whether the job finds its config and what that names, and is left the time to stop."""
    (job,) = jobs.values()
    pod = pod_templates(job)["head"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    (name,) = (one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one)
    config = configs.get(name, {"data": {}})["data"]
    path = PurePosixPath(shlex.split(job["spec"]["entrypoint"])[-1])
    if str(path.parent) != mounts.get("config") or path.name not in config:
        yield f"the job finds no {path}"
        return
    read = read_config(base=tomllib.loads(config[path.name]), sets=["cluster.address=auto"])
    for key, place in places(read):
        if not place.startswith(f"{mounts.get('runs')}/") and place != mounts.get("runs"):
            yield f"{key} = {place} is no shared folder"
    told = yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]
    if told.items() - environment_of(container).items():
        yield "runtimeEnvYAML says another thing than the nodes' environment"


def test_the_objects_find_each_other() -> None:
    assert list(faults(OBJECTS)) == []


def index(kind: str) -> int:
    return next(number for number, one in enumerate(OBJECTS) if one["kind"] == kind)


JOB = f"{index('RayJob')}.spec"
POD = f"{JOB}.rayClusterSpec.headGroupSpec.template.spec"
SERVER = f"{index('Deployment')}.spec.template"
ENVIRONMENT = f"{SERVER}.spec.containers.0.env.0.value"
RUN_TOML = f"{index('ConfigMap')}.data"
CLAIM = f"{index('PersistentVolumeClaim')}"


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (f"{POD}.volumes.1.persistentVolumeClaim.claimName", "longrow-run", "there is no claim"),
        (f"{CLAIM}.metadata.name", "longrow-data", "there is no claim longrow-runs"),
        (f"{CLAIM}.spec.accessModes", ["ReadWriteOnce"], "several nodes write it"),
        (f"{POD}.volumes.2.configMap.name", "longrow", "there is no ConfigMap longrow"),
        (f"{POD}.volumes.0.name", "sh", "named once only"),
        (f"{POD}.containers.0.volumeMounts.0.mountPath", "/dev/shmem", "mounted elsewhere"),
        (f"{POD}.containers.0.volumeMounts.1.mountPath", "/run", "is no shared folder"),
        (f"{POD}.containers.0.volumeMounts.2.mountPath", "/etc/longro", "the job finds no"),
        (f"{POD}.containers.0.envFrom.0.secretRef.name", "longrow-aws", "longrow-aws"),
        (f"{POD}.containers.0.env.3.value", "http://mlflo:5000", "listens at mlflo:5000"),
        (f"{POD}.containers.0.env.3.value", "http://mlflow:5001", "listens at mlflow:5001"),
        (f"{POD}.containers.0.securityContext", {}, "more than it must"),
        (f"{POD}.securityContext.runAsNonRoot", False, "more than it must"),
        (f"{POD}.securityContext.seccompProfile.type", "Unconfined", "more than it must"),
        (f"{POD}.automountServiceAccountToken", True, "more than it must"),
        (f"{JOB}.rayClusterSpec.authOptions.secretName", "longrow-token", "longrow-token"),
        (f"{JOB}.rayClusterSpec.authOptions.mode", "disabled", "asks for no token"),
        (f"{JOB}.entrypoint", "python -m jobs.train /etc/longrow/runs.toml", "finds no /etc"),
        (f"{JOB}.runtimeEnvYAML", "env_vars: {RAY_JOB_STOP_WAIT_TIME_S: '3'}", "runtimeEnvYAML"),
        (f"{JOB}.runtimeEnvYAML", "env_vars: {RAY_JOB_STOP_WAIT: '120'}", "runtimeEnvYAML"),
        (f"{index('RayJob')}.metadata.name", "longrow-job", "rayjob longrow-run is told of"),
        (f"{RUN_TOML}.[run~toml]", "runs.toml", "the job finds no"),
        (f"{RUN_TOML}.run~toml", "", "is no shared folder"),
        (f"{index('Service')}.metadata.name", "mlflo", "service mlflow is told of"),
        (f"{index('Service')}.spec.selector.app", "mlflo", "the Service finds no pod"),
        (f"{index('Service')}.spec.ports.0.targetPort", "htpp", "at port htpp"),
        (f"{index('Service')}.spec.ports.0.port", 5001, "nobody listens at mlflow:5000"),
        (f"{SERVER}.metadata.labels.app", "mlflo", "the Deployment finds no pod"),
        (f"{SERVER}.spec.containers.0.ports.0.containerPort", 5001, "does not listen at port http"),
        (f"{SERVER}.spec.containers.0.livenessProbe.httpGet.port", "htp", "at port htp"),
        (f"{SERVER}.spec.containers.0.startupProbe.httpGet.path", "/healt", "a probe asks"),
        (f"{SERVER}.spec.containers.0.envFrom.0.secretRef.name", "longrow-mlfow", "longrow-mlfow"),
        (f"{SERVER}.spec.[enableServiceLinks]", "x", "MLFLOW_PORT"),
        (ENVIRONMENT, "postgresql+psycopg2://mlflow:pw@postgres:5432/mlflow", "a password"),
    ],
)
def test_a_planted_mistake_is_seen(path: str, value: Any, fault: str) -> None:
    assert any(fault in found for found in faults(planted(OBJECTS, path, value)))


@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        ("secret generic longrow-s3", "secret generic longrow-aws", "longrow-aws"),
        ("--from-file=auth_token=", "--from-file=token=", "the token's key"),
        ("-hex 32 | tr -d '\\n' |", "-hex 32 |", "ends with a line end"),
        ("delete rayjob longrow-run", "delete rayjob longrow", "rayjob longrow is told of"),
        ("port-forward service/mlflow", "port-forward service/mlflo", "service mlflo is told of"),
    ],
)
def test_a_planted_mistake_in_a_head_is_seen(right: str, wrong: str, fault: str) -> None:
    assert right in HEADS
    assert any(fault in found for found in faults(OBJECTS, HEADS.replace(right, wrong)))
