"""Numbers of a run are numbers."""

import math
from dataclasses import fields
from typing import Any

import pytest

from trainer.errors import ConfigError
from trainer.settings import (
    ClusterSettings,
    EvaluateSettings,
    OptimizerSettings,
    TrainerSettings,
)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    ("section", "kind", "key"),
    [
        (section, kind, field.name)
        for section, kind in (
            ("trainer", TrainerSettings),
            ("optimizer", OptimizerSettings),
            ("evaluate", EvaluateSettings),
            ("cluster", ClusterSettings),
        )
        for field in fields(kind)
        if isinstance(field.default, float)
    ],
)
def test_no_number_of_a_run_is_infinite(section: str, kind: Any, key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{section}\.{key} = -?(inf|nan) must be finite"):
        kind(**{key: value})
