"""What no tracked file may hold, and what the tree must hold."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Names of package registries, in two halves so that this file does not hold one.
REGISTRIES = [
    first + second
    for first, second in [
        ("py", "pi.org"),
        ("python", "hosted.org"),
        ("npm", "js.org"),
        ("npm", "js.com"),
        ("deb", "ian.org"),
        ("ana", "conda.org"),
        ("download.py", "torch.org"),
    ]
]


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files are ours")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_no_tracked_file_names_a_registry_host() -> None:
    hosts = re.compile("|".join(map(re.escape, REGISTRIES)), re.IGNORECASE)
    named = {
        path.relative_to(ROOT).as_posix(): found[0]
        for path in tracked()
        if path.is_file() and (found := hosts.search(path.read_bytes().decode(errors="replace")))
    }
    assert named == {}


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(line for extra in extras for line in extra)]
    pinned = {
        line.partition("==")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    names = {re.split(r"[\[<>=! ]", line, maxsplit=1)[0].lower() for line in wanted}
    assert names <= pinned


def test_a_pin_names_no_build_of_one_machine() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    wrong = [line for line in pins if not re.fullmatch(r"#.*|[a-z0-9.-]+==[0-9a-z.]+", line)]
    assert wrong == []
