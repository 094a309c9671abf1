"""What infra/ holds, read as the programs that are to run it read it."""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
INFRA = ROOT / "infra"
COMPOSE = INFRA / "compose.yaml"
COMPOSE_CUDA = INFRA / "compose.cuda.yaml"
RAY_UP = INFRA / "ray-cluster.yaml"
MANIFESTS = sorted((INFRA / "kubernetes").glob("*.yaml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container of any of the files, as far as all of them have it."""

    where: str
    image: str
    command: list[str]
    environment: dict[str, str]
    ports: list[int]


def read(path: Path) -> Any:
    """The one document of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def planted(document: Any, path: str, value: Any) -> Any:
    """A copy with `value` at a dotted path; a key in brackets ends up renamed to it.

    A dot in a key is written as `~`.
    """
    wrong = copy.deepcopy(document)
    place: Any = wrong
    *steps, last = (step.replace("~", ".") for step in path.split("."))
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if last.startswith("["):
        place[value] = place.pop(last[1:-1])
    elif isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return wrong


def bytes_of(size: str) -> float:
    """A size as docker, compose or Kubernetes writes it (1.5g, 2gb, 500Mi), in bytes."""
    found = re.fullmatch(r"([0-9.]+)([kmg]?)(i?)b?", size.lower())
    assert found, size
    decimal = size[-1] in "kMG"  # Kubernetes' own: M is 10^6, Mi is 2^20, docker's m is 2^20
    return float(found[1]) * (1000 if decimal else 1024) ** " kmg".index(found[2] or " ")


def objects() -> list[tuple[str, dict[str, Any]]]:
    """Every Kubernetes object, with the file it stands in."""
    return [
        (path.name, one)
        for path in MANIFESTS
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def pod_templates(one: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pod templates of a Ray object, by the name of their group."""
    spec = one["spec"].get("rayClusterSpec", one["spec"])
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    return {"head": spec["headGroupSpec"], **groups}


def containers() -> Iterator[Container]:
    """Every container of every file."""
    for path in (COMPOSE, COMPOSE_CUDA):
        for name, service in read(path)["services"].items():
            yield Container(
                where=f"{path.name}: {name}",
                image=service["image"],
                command=service.get("command", []),
                environment=service.get("environment", {}),
                ports=[int(port.rpartition(":")[2]) for port in service.get("ports", [])],
            )
    ray_up = read(RAY_UP)
    options = [word.removeprefix("--env=") for word in ray_up["docker"]["run_options"]]
    for role in ("head", "worker"):
        yield Container(
            where=f"{RAY_UP.name}: {role}",
            image=ray_up["docker"]["image"],
            command=ray_up[f"{role}_start_ray_commands"][-1].split(),
            environment=dict(word.split("=", 1) for word in options if not word.startswith("--")),
            ports=[],
        )
    for file, one in objects():
        for spec in _pod_specs(one):
            for container in spec["containers"]:
                yield Container(
                    where=f"{file}: {container['name']}",
                    image=container["image"],
                    command=container.get("command", []),
                    environment={pair["name"]: pair["value"] for pair in container["env"]},
                    ports=[port["containerPort"] for port in container.get("ports", [])],
                )


def _pod_specs(one: dict[str, Any]) -> list[dict[str, Any]]:
    if one["kind"] in ("RayCluster", "RayJob"):
        return [group["template"]["spec"] for group in pod_templates(one).values()]
    return [one["spec"]["template"]["spec"]] if one["kind"] == "Deployment" else []
