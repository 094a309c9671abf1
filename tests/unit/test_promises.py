"""The tests that CONTRIBUTING.md names for the promises of a run are there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_is_named_for_a_promise_exists() -> None:
    named = re.findall(
        r"^\| .+ \| `(\w+/test_\w+\.py)` `(test_\w+)` \|$",
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(named) > 30
    for file, name in named:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        tests = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
        assert name in tests, f"{file} has no {name}"
