"""What people are told to type beyond our own commands names what there is.

The heads of the files in infra/, its README and the pages on clusters and servers: paths, tags of
images, ports, build arguments, services, variables. Commands of ours, of Ray's and of MLflow's are
read as they would be when typed by test_infra_names.py.
"""

import re
from collections.abc import Callable, Iterator

import pytest

from tests.infra_files import COMPOSE, INFRA, ROOT, containers, read
from tests.unit.test_infra_compose import listening
from tests.unit.test_infra_names import VERSION, variable_is_known

MADE = {"infra/.env"}  # by who follows the page
PAGES = [
    *sorted(INFRA.rglob("*.yaml")),
    INFRA / "Dockerfile",
    INFRA / "README.md",
    INFRA / "compose.env.example",
    ROOT / "docs" / "cluster.md",
    ROOT / "docs" / "tracking.md",
]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
PORTS = {port for service in read(COMPOSE)["services"].values() for port in listening(service)}
PORTS |= {port for one in containers() for port in one.ports}


def faults(text: str) -> Iterator[str]:
    """What a page tells that is not so."""
    arguments = re.findall(r"^ARG (\w+)=", TEXTS["infra/Dockerfile"], re.MULTILINE)
    services = {*read(COMPOSE)["services"], "infra/ray-cluster.yaml"}
    # What to look for, whether one that was found is there, and what to say if not.
    checks: list[tuple[str, Callable[[str], bool], str]] = [
        (r"\binfra/[\w./-]*[\w/]", lambda path: path in MADE or (ROOT / path).exists(),
         "there is no {}"),
        (r"docker [\w ]+-f (\S+)", lambda path: (ROOT / path).is_file(), "there is no {}"),
        (r"`([\w-]+\.ya?ml)`", lambda name: bool(list(INFRA.rglob(name))),
         "there is no {} in infra/"),
        (r"\blongrow:([\w.-]*\w)", lambda tag: tag.removesuffix("-cuda") == VERSION,
         "the image longrow:{} is none of ours"),
        (r"(?:localhost|127\.0\.0\.1|HEAD|HOST):(\d+)", lambda port: int(port) in PORTS,
         "nobody listens at port {}"),
        (r"--build-arg (\w+)=", lambda name: name in arguments,
         "the Dockerfile has no argument {}"),
        (r"(?:--scale | exec |cp \S+ )([\w./-]+)(?==| |:/)", lambda name: name in services,
         "there is no service {}"),
        (r"\b((?:RAY|MLFLOW)_[A-Z_]+)\b", is_read, "nobody reads {}"),
    ]  # fmt: skip
    for pattern, holds, wrong in checks:
        yield from (wrong.format(found) for found in re.findall(pattern, text) if not holds(found))


def is_read(name: str) -> bool:
    """Whether anybody reads a variable."""
    # The operator's and the autoscaler's are in no Python of Ray's that reads an environment.
    return variable_is_known(name) or name in {"RAY_HEAD_IP", "RAY_API_SERVER_ADDRESS"}


@pytest.mark.parametrize("page", TEXTS)
def test_what_a_page_tells_is_there(page: str) -> None:
    assert list(faults(TEXTS[page])) == []


def test_the_readme_lists_the_files_that_there_are() -> None:
    text = TEXTS["infra/README.md"]
    cells = re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE)
    told = {name.rstrip("/") for cell in cells for name in re.findall(r"`(.+?)`", cell)}
    with_others = {"README.md", "Dockerfile.dockerignore", "compose.env.example"}
    there = {path.name for path in INFRA.iterdir() if path.name[0] not in "._"}
    assert told == there - with_others


@pytest.mark.parametrize(
    ("page", "right", "wrong", "fault"),
    [
        ("infra/Dockerfile", "-f infra/Dockerfile", "-f infra/Dockerfil", "no infra/Dockerfil"),
        ("infra/Dockerfile", "longrow:0.1.0-cuda", "longrow:0.1.0-gpu", "longrow:0.1.0-gpu"),
        ("infra/Dockerfile", "--build-arg PYTHON", "--build-arg PYTHN", "no argument PYTHN"),
        ("infra/compose.yaml", "--scale ray-worker", "--scale ray-workers", "service ray-workers"),
        ("infra/compose.yaml", "exec ray-head", "exec rayhead", "service rayhead"),
        ("infra/compose.yaml", "compose.cuda.yaml", "compose.gpu.yaml", "infra/compose.gpu.yaml"),
        ("infra/compose.yaml", "infra/compose.env.example", "infra/compose.env", "compose.env"),
        ("infra/ray-cluster.yaml", "image longrow:0.1.0", "image longrow:0.2.0", "longrow:0.2.0"),
        ("infra/ray-cluster.yaml", "up infra/ray-cl", "up infra/cl", "no infra/cluster.yaml"),
        ("infra/kubernetes/raycluster.yaml", "localhost:8265", "localhost:8256", "port 8256"),
        ("infra/kubernetes/raycluster.yaml", "es/storage.y", "es/store.y", "kubernetes/store.yaml"),
        ("infra/README.md", "docker run --rm longrow:0.1.0", "longrow:0.1", "longrow:0.1 is"),
        ("infra/README.md", "build -f infra/", "build -f ", "no Dockerfile"),
        ("infra/README.md", "infra/compose.env.ex", "infra/env.ex", "no infra/env.example"),
        ("infra/README.md", "toml ray-head:/", "toml head:/", "no service head"),
        ("infra/README.md", "http://localhost:5000", "http://localhost:5001", "port 5001"),
        ("docs/cluster.md", "`rayjob.yaml`", "`job.yaml`", "no job.yaml"),
        ("infra/README.md", "of `raycluster.yaml`", "of `cluster.yaml`", "no cluster.yaml"),
        ("docs/cluster.md", "export RAY_API_SERVER", "export RAY_API", "nobody reads RAY_API_ADDR"),
        ("docs/cluster.md", "RAY_AUTH_TOKEN_PATH", "RAY_TOKEN_PATH", "nobody reads RAY_TOKEN_PATH"),
        ("docs/cluster.md", "8265:localhost:8265", "8265:localhost:8256", "port 8256"),
        ("docs/tracking.md", "MLFLOW_SERVER_ALLOWED_HOSTS", "MLFLOW_ALLOWED_HOSTS", "MLFLOW_ALLOW"),
        ("docs/tracking.md", "export MLFLOW_TRACKING_URI", "export MLFLOW_URI", "MLFLOW_URI"),
    ],
)
def test_a_planted_mistake_is_seen(page: str, right: str, wrong: str, fault: str) -> None:
    assert right in TEXTS[page]
    assert any(fault in found for found in faults(TEXTS[page].replace(right, wrong)))
