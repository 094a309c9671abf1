"""Pipeline, model and the loop need neither Ray nor MLflow: a notebook, a bare GPU box."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKED = ("ray", "mlflow", "matplotlib", "pydantic", "click", "tqdm")
ACTORS = {"pipeline.build_actor", "pipeline.server_actor"}
WITH_TRITON = {"model.attention_triton"}
WITH_RAY_OR_MLFLOW = {
    "trainer.board_actor",
    "trainer.launch_ray",
    "trainer.scorer_actor",
    "trainer.mlflow_run",
    "trainer.tracking",
    "trainer.pictures",
}


def modules(folder: str) -> set[str]:
    return {f"{folder}.{path.stem}" for path in (ROOT / folder).glob("[!_]*.py")}


@pytest.mark.parametrize(
    ("names", "also"),
    [
        (modules("pipeline") - ACTORS, ("torch",)),
        (modules("model") - WITH_TRITON, ("pyarrow",)),
        (modules("trainer") - WITH_RAY_OR_MLFLOW, ()),
    ],
    ids=["pipeline", "model", "trainer"],
)
def test_it_is_imported_where_the_others_are_not_installed(
    names: set[str], also: tuple[str, ...]
) -> None:
    # None in sys.modules makes an import fail as if the library were not there.
    code = "import sys, importlib\n"
    code += "".join(f"sys.modules[{name!r}] = None\n" for name in (*BLOCKED, *also))
    code += "".join(f"importlib.import_module({name!r})\n" for name in sorted(names))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
