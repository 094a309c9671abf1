"""The Dockerfile, without docker: hadolint, what it copies, what it pins, who runs in it."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.infra_files import INFRA, ROOT
from tests.unit.test_infra_names import STOP_JOBS, WAIT, told, variable_is_known

DOCKERFILE = (INFRA / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def hadolint(text: str, tmp_path: Path) -> str:
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    assert found, "hadolint is not installed: it comes with the dev extra (make install-dev)"
    path = tmp_path / "Dockerfile"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([found, "--no-color", path], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def words(text: str, instruction: str) -> list[list[str]]:
    """The words of each such instruction; lines that go on are one."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [line.split()[1:] for line in lines if line.startswith(f"{instruction} ")]


def copied(text: str) -> list[str]:
    """What the Dockerfile copies from the repository."""
    own = [copy for copy in words(text, "COPY") if not copy[0].startswith("--from")]
    return [source for copy in own for source in copy[:-1]]


def ignored(path: str) -> bool:
    """Whether Dockerfile.dockerignore keeps a path of the repository from the builder."""
    lines = (INFRA / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    out = False
    for line in lines:
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and fnmatch(path, pattern):
            out = not line.startswith("!")
    return out


def faults(text: str) -> list[str]:
    """What is wrong with a Dockerfile that hadolint cannot know."""
    python = re.findall(r"^ARG PYTHON=(\S+)$", text, re.MULTILINE)
    environment = " ".join(" ".join(line) for line in words(text, "ENV"))
    variables = dict(word.split("=", 1) for word in environment.split() if "PIP_" not in word)
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    sources = copied(text)
    checks = {
        "a copied path is missing": all((ROOT / source).exists() for source in sources),
        "a copied path is ignored": not any(ignored(source.rstrip("/")) for source in sources),
        "a program of the nodes is not copied": {STOP_JOBS, WAIT}
        <= {f"{copy[-1]}{Path(name).name}" for copy in words(text, "COPY") for name in copy[:-1]},
        "a package is not copied": {f"{name}/" for name in packages} <= set(sources),
        "Python does not fit requires-python": len(python) == 1
        and python[0] in SpecifierSet(PROJECT["project"]["requires-python"]),
        "it does not end as another than root": words(text, "USER")[-1:] == [["1000:1000"]],
        "an installation is not pinned": text.count("pip install") == text.count("--constraint"),
        "an extra is unknown": set(re.findall(r"longrow\[(\w+)]", text))
        <= set(PROJECT["project"]["optional-dependencies"]),
        "telemetry is on": {
            "RAY_USAGE_STATS_ENABLED=0",
            "MLFLOW_DISABLE_TELEMETRY=true",
            "DO_NOT_TRACK=true",
        }
        <= set(environment.split()),
        "Ray asks for no token": "RAY_AUTH_MODE=token" in environment,
        "its command is nobody's": told(json.loads(text[text.rindex("CMD ") + 4 :])) == "",
        "a stage is nobody's": set(re.findall(r"from=(\w+)", text)) <= set(STAGE.findall(text)),
        "a variable is read by nobody": all(is_read(name) for name in variables),
        "a variable names no file of the image": {
            value for value in variables.values() if value.startswith("/")
        }
        <= {f"{copy[-1]}{Path(name).name}" for copy in words(text, "COPY") for name in copy[:-1]},
        "its folders are not its user's": re.findall(r"--uid (\d+) (\w+) .+--owner=(\w+)", text)
        == [("1000", "longrow", "longrow")],
        "a secret stands in it": not re.search(r"(TOKEN|PASSWORD|SECRET)\w*=\S", text),
    }
    return [name for name, holds in checks.items() if not holds]


STAGE = re.compile(r"^FROM .+ AS (\w+)$", re.MULTILINE)


def is_read(name: str) -> bool:
    """Whether anybody reads a variable that the image sets."""
    if name.startswith("LONGROW_"):
        return any(f'"{name}"' in path.read_text("utf-8") for path in ROOT.glob("jobs/*.py"))
    return name == "PYTHONUNBUFFERED" or variable_is_known(name)


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    assert hadolint(DOCKERFILE, tmp_path) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        ('CMD ["longrow", "--help"]', "CMD longrow --help", "DL3025"),
        ("pip install --constraint constraints.txt build hatchling", "pip install build", "DL3013"),
        ("WORKDIR /source", "WORKDIR source", "DL3000"),
        ("-slim-bookworm AS wheel", "-slim-bookworm AS wheel\nRUN cd /tmp", "DL3003"),
        ("FROM python:${PYTHON}-slim-bookworm\n", "FROM python:latest\n", "DL3007"),
    ],
)
def test_hadolint_sees_a_planted_mistake(right: str, wrong: str, rule: str, tmp_path: Path) -> None:
    assert right in DOCKERFILE
    assert rule in hadolint(DOCKERFILE.replace(right, wrong), tmp_path)


def test_the_image_is_made_of_this_project() -> None:
    assert faults(DOCKERFILE) == []


@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        ("infra/stop_jobs.py infra", "infra/stop_job.py infra", "a copied path is missing"),
        (" infra/wait_for_workers.py /opt", " /opt", "a program of the nodes is not copied"),
        ("COPY pyproject.toml", "COPY CHANGELOG.md pyproject.toml", "a copied path is ignored"),
        ("COPY trainer/ trainer/\n", "", "a package is not copied"),
        ("PYTHON=3.11.15", "PYTHON=3.10.18", "Python does not fit requires-python"),
        ("USER 1000:1000\n", "", "it does not end as another than root"),
        ("USER 1000:1000\n", "USER 1000:1000\nUSER root\n", "it does not end as another than root"),
        ('--constraint /opt/longrow/constraints.txt "', '"', "an installation is not pinned"),
        ("longrow[cluster]", "longrow[clusters]", "an extra is unknown"),
        ("MLFLOW_DISABLE_TELEMETRY=true", "MLFLOW_DISABLE_TELEMETRY=1", "telemetry is on"),
        ("RAY_USAGE_STATS_ENABLED=0", "RAY_USAGE_STATS=0", "telemetry is on"),
        ('CMD ["longrow"', 'CMD ["longro"', "its command is nobody's"),
        ('"longrow", "--help"]', '"longrow", "tran"]', "its command is nobody's"),
        (" AS wheel", " AS whel", "a stage is nobody's"),
        ("mount=type=bind,from=wheel", "mount=type=bind,from=weel", "a stage is nobody's"),
        ("LONGROW_CONSTRAINTS=", "LONGROW_CONSTRAINT=", "a variable is read by nobody"),
        ("MLFLOW_DISABLE_", "MLFLOW_DISABEL_", "a variable is read by nobody"),
        ("=/opt/longrow/cons", "=/opt/cons", "a variable names no file of the image"),
        ("--owner=longrow", "--owner=root", "its folders are not its user's"),
        ("RAY_AUTH_MODE=token", "RAY_AUTH_MODE=disabled", "Ray asks for no token"),
        ("PYTHONUNBUFFERED=1", "RAY_AUTH_TOKEN=abc", "a secret stands in it"),
    ],
)
def test_a_planted_mistake_in_the_image_is_seen(right: str, wrong: str, fault: str) -> None:
    planted = DOCKERFILE.replace(right, wrong)
    assert planted != DOCKERFILE
    assert fault in faults(planted)
