"""docs/choosing.md: its script runs, its formulas are a backward pass's, its table stands."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text(encoding="utf-8")
SMALL = {"layers": 2, "width": 64, "heads": 2, "head_width": 32, "inner_width": 128}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    (text,) = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "choosing"}
    exec(compile(text, "docs/choosing.md", "exec"), names)  # noqa: S102 - our own page
    return names


@pytest.mark.parametrize(("L", "M"), [(16, 0), (16, 16), (16, 64), (64, 16), (40, 24)])
def test_the_formulas_are_what_a_backward_pass_does(L: int, M: int, script: dict[str, Any]) -> None:
    flops, kept, _ = script["measured"](L, M, SMALL, 300)
    told, _, told_kept = script["formulas"](L, M, SMALL, 300)
    assert flops == pytest.approx(told, rel=1e-9)
    assert kept == pytest.approx(told_kept, rel=0.2)


def test_the_table_is_that_of_its_script(script: dict[str, Any]) -> None:
    L, M = script["LENGTHS"][0]
    assert script["line"](L, M, script["SHAPE"], script["VOCABULARY"]) in PAGE
    for L, M in script["LENGTHS"]:
        flops, memory, _ = script["formulas"](L, M, script["SHAPE"], script["VOCABULARY"])
        assert f"| {L} | {M} | {12 * M + L:,} | {flops / 1e6:,.0f} | {memory / 1e6:.1f} |" in PAGE
