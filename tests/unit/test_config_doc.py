"""docs/config.md is what the config classes say, and docs/metrics.md what the code can emit."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs import config_doc
from jobs.config import keys
from jobs.config_doc import limits, page
from trainer.errors import ConfigError
from trainer.examiner import evaluation_line
from trainer.settings import TrainerSettings

ROOT = Path(__file__).parents[2]
# `group/name`, as MLflow shows it in groups; what begins so elsewhere is a path.
METRIC = re.compile(r"(?:train|eval|data|system|checkpoint)/[a-z](?:[a-z0-9_]*[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """A section.

    Attributes:
        told: A key with a sentence.
    """

    told: int = 1
    untold: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeScores:
    """As much of an evaluation's scores as a metric line takes."""

    memory: int
    step: int = 1
    loss: float = 1.0
    perplexity: float = 1.0
    bits_per_byte: float = 1.0


def test_the_page_of_keys_is_current() -> None:
    written = config_doc.PAGE.read_text(encoding="utf-8")
    assert written == page(), "run `python -m jobs.config_doc`"


def test_every_key_has_its_line_with_type_default_and_sentence() -> None:
    lines = re.findall(r"^\| `\w+` \| .+ \| .+ \| .* \| .+ \|$", page(), re.MULTILINE)
    assert len(lines) == len(keys())


def test_a_key_without_a_sentence_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config_doc, "sections", lambda: {"new": Untold})
    with pytest.raises(ConfigError, match=r"what new\.untold is"):
        page()


def test_a_range_is_in_the_words_of_the_class() -> None:
    assert limits("trainer", TrainerSettings, "steps", int) == ["be above 0"]
    assert limits("trainer", TrainerSettings, "deterministic", bool) == []


def emitted() -> set[str]:
    """Every metric name that stands in the code; those put together are in `evaluation_line`."""
    names: set[str] = set()
    for path in [*(ROOT / "trainer").glob("*.py"), *(ROOT / "jobs").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names |= {node.value} if METRIC.fullmatch(node.value) else set()
    return names | scored()


def scored() -> set[str]:
    """What an evaluation emits, memory lengths as M."""
    scores = [FakeScores(memory=128), FakeScores(memory=7)]
    line = evaluation_line(scores, training_memory=128)  # pyright: ignore[reportArgumentType]
    return {re.sub(r"memory_\d+", "memory_M", name) for name in line if "/" in name}


def test_the_page_of_metrics_names_what_the_code_can_emit_and_nothing_else() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([a-z_/M]+)` \| .+ \|$", text, re.MULTILINE)
    assert len(told) == len(set(told))
    assert set(told) == emitted()
