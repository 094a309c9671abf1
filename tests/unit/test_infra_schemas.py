"""Compose, `ray up` and Kubernetes files against the schemas of the programs that read them.

Compose: the compose-spec schema that check-jsonschema carries. `ray up`: Ray's own validator.
Kubernetes: strict schemas of kubernetes-validate; KubeRay's objects by tests/data/kuberay_v1.json,
cut from its custom resource definitions, with their pod templates checked as pod templates.
"""

import copy
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import jsonschema
import kubernetes_validate
import pytest
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.infra_files import (
    COMPOSE,
    COMPOSE_CUDA,
    RAY_UP,
    objects,
    planted,
    pod_templates,
    read,
)

KUBERNETES = "1.34"
KUBERAY = Path(__file__).parents[1] / "data" / "kuberay_v1.json"
# The operator's own check, not in its schema.
SUBMISSION_MODES = {"K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"}
OBJECTS = objects()


def check_compose(document: dict[str, Any]) -> None:
    schema = files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json"
    jsonschema.validate(document, json.loads(schema.read_text(encoding="utf-8")))


def check_ray_up(document: dict[str, Any]) -> None:
    validate_config(prepare_config(copy.deepcopy(document)))


def check_kubernetes(one: dict[str, Any]) -> None:
    if one.get("apiVersion") != "ray.io/v1":
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
        return
    schema = json.loads(KUBERAY.read_text(encoding="utf-8"))
    jsonschema.validate(one, {**schema, "$ref": f"#/$defs/{one['kind']}"})
    if one["kind"] == "RayJob" and one["spec"]["submissionMode"] not in SUBMISSION_MODES:
        raise jsonschema.ValidationError(f"submissionMode is none of {SUBMISSION_MODES}")
    for name, group in pod_templates(one).items():
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": name},
            "template": group["template"],
        }
        kubernetes_validate.validate(template, KUBERNETES, strict=True)


def object_of(kind: str) -> dict[str, Any]:
    return next(one for _, one in OBJECTS if one["kind"] == kind)


@pytest.mark.parametrize("path", [COMPOSE, COMPOSE_CUDA], ids=lambda path: path.name)
def test_compose_files_fit_the_compose_specification(path: Path) -> None:
    check_compose(read(path))


def test_rays_own_validator_takes_the_cluster_file() -> None:
    check_ray_up(read(RAY_UP))


@pytest.mark.parametrize(
    ("file", "one"), OBJECTS, ids=[f"{file}-{one['kind']}" for file, one in OBJECTS]
)
def test_each_kubernetes_object_fits_its_strict_schema(file: str, one: dict[str, Any]) -> None:
    assert file.endswith(".yaml")
    check_kubernetes(one)


HEAD = "spec.headGroupSpec.template.spec"
PLANTED: list[tuple[Callable[[Any], None], Any, str, Any]] = [
    (check_compose, read(COMPOSE), "services.store.[volumes]", "volumess"),
    (check_compose, read(COMPOSE), "services.ray-head.shm_sise", "2gb"),
    (check_compose, read(COMPOSE), "services.ray-head.ports", "8265:8265"),
    (check_compose, read(COMPOSE), "services.mlflow.depends_on.postgres.condition", "healthy"),
    (check_compose, read(COMPOSE_CUDA), "services.ray-worker.deploy.resource", {}),
    (check_ray_up, read(RAY_UP), "max_worker", 2),
    (check_ray_up, read(RAY_UP), "provider.[head_ip]", "head"),
    (check_ray_up, read(RAY_UP), "docker.run_option", ["--init"]),
    (check_ray_up, read(RAY_UP), "upscaling_speed", "fast"),
    (check_kubernetes, object_of("Deployment"), "spec.replica", 1),
    (check_kubernetes, object_of("Deployment"), "spec.template.spec.containers.0.ports", [5000]),
    (check_kubernetes, object_of("Service"), "spec.ports.0.[targetPort]", "targetport"),
    (check_kubernetes, object_of("PersistentVolumeClaim"), "spec.accessModes", "ReadWriteMany"),
    (check_kubernetes, object_of("ConfigMap"), "data.other", 1),
    (check_kubernetes, object_of("RayCluster"), "spec.authOptions.mode", "tokens"),
    (check_kubernetes, object_of("RayCluster"), "spec.[rayVersion]", "rayversion"),
    (check_kubernetes, object_of("RayCluster"), "spec.workerGroupSpecs.0.replicas", "2"),
    (check_kubernetes, object_of("RayCluster"), f"{HEAD}.[terminationGracePeriodSeconds]", "grace"),
    (check_kubernetes, object_of("RayCluster"), f"{HEAD}.volumes.0.emptyDir.sizeLimits", "2Gi"),
    (check_kubernetes, object_of("RayJob"), "spec.submissionMode", "JobMode"),
    (check_kubernetes, object_of("RayJob"), "spec.[backoffLimit]", "backofflimit"),
    (check_kubernetes, object_of("RayJob"), "spec.rayClusterSpec.headGroupSpec.templates", {}),
]


@pytest.mark.parametrize(
    ("check", "document", "path", "value"), PLANTED, ids=[f"{row[2]}-{row[3]}" for row in PLANTED]
)
def test_a_planted_mistake_is_seen(
    check: Callable[[Any], None], document: Any, path: str, value: Any
) -> None:
    # kubernetes-validate's error is a jsonschema one; Ray says by click what no schema holds.
    wrong = planted(document, path, value)
    with pytest.raises((jsonschema.ValidationError, click.ClickException)):
        check(wrong)
