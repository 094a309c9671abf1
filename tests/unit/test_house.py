"""House rules a machine can check: who imports whom, and which file owns which library."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAY_IMPORT = {
    "model": set[str](),
    "pipeline": set[str](),
    "trainer": {"model", "pipeline"},
    "jobs": {"model", "pipeline", "trainer"},
}
OWNERS = {
    "ray": {
        "pipeline/build_actor.py",
        "pipeline/server_actor.py",
        "trainer/board_actor.py",
        "trainer/launch_ray.py",
        "trainer/scorer_actor.py",
        "jobs/cluster.py",
        "jobs/cluster_look.py",
        "jobs/ray_jobs.py",
    },
    "pyarrow": {
        "pipeline/arrow_arrays.py",
        "pipeline/store.py",
        "pipeline/part.py",
        "pipeline/columns.py",
    },
    "sentencepiece": {"pipeline/tokenizer.py"},
    "fsspec": {"pipeline/files.py"},
    "mlflow": {"trainer/mlflow_run.py", "trainer/tracking.py"},
    "matplotlib": {"trainer/pictures.py"},
    "safetensors": {"model/weights.py", "trainer/checkpoint.py"},
    "pydantic": {"jobs/config.py"},
    "triton": {"model/attention_triton.py"},
    "orjson": {"pipeline/json_records.py"},
}
CLOSED = {"pipeline": {"torch", "mlflow", "click"}, "model": {"numpy", "ray", "mlflow", "click"}}
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in MAY_IMPORT
    for path in (ROOT / folder).rglob("*.py")
)


def imported(file: str) -> Iterator[str]:
    """Top-level names a file imports, inside functions too."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".", 1)[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".", 1)[0]


@pytest.mark.parametrize("file", FILES)
def test_imports_point_one_way(file: str) -> None:
    folder = file.split("/", 1)[0]
    ours = set(imported(file)) & set(MAY_IMPORT)
    assert ours <= MAY_IMPORT[folder] | {folder}


@pytest.mark.parametrize("file", FILES)
def test_a_library_is_imported_where_it_lives(file: str) -> None:
    strays = {library for library in imported(file) if file not in OWNERS.get(library, {file})}
    assert not strays


@pytest.mark.parametrize("file", FILES)
def test_a_folder_keeps_out_what_it_must_run_without(file: str) -> None:
    assert not set(imported(file)) & CLOSED.get(file.split("/", 1)[0], set())
