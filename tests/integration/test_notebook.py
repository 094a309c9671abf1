"""docs/example.ipynb runs, cell by cell, and prints what stands there.

Plain `exec`, no Jupyter: the cells are Python and no more. What hangs on trained weights (tag
`varies`) must be said and may differ, for its last bits are of the machine.
"""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_every_cell_of_the_notebook_prints_what_stands_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = json.loads((ROOT / "docs" / "example.ipynb").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the command that it starts
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    for number, cell in enumerate(cells, 1):
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)  # noqa: S102
        shown = "".join(text for output in cell["outputs"] for text in output["text"])
        if "varies" in cell["metadata"].get("tags", ()):
            assert bool(told.getvalue()) == bool(shown)
        else:
            assert told.getvalue() == shown, f"cell {number}"
