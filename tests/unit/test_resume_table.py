"""docs/runs.md says of every key what a resume does with it, and that is what it does."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from jobs.config import keys
from tests.tiny_runs import tiny_plan
from trainer.errors import ConfigError
from trainer.plan import DEFAULTS, TrainPlan, changes, check_identity

TABLE = Path(__file__).parents[2] / "docs" / "runs.md"
PLACES = {"rows": "layout"}  # where a section stands in the plan, if not under its name


def rules() -> dict[str, str]:
    """The first word of each rule, by key or section.*."""
    cells = [line.split("|")[1:3] for line in TABLE.read_text().splitlines() if "| `" in line]
    return {
        key.strip(" `"): what.split()[0].strip(";:,")
        for key, what in cells
        if "." in key and "/" not in key
    }


def rule_of(key: str) -> str:
    known = rules()
    return known.get(key) or known[f"{key.partition('.')[0]}.*"]


@pytest.fixture(scope="module")
def plan(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainPlan:
    return tiny_plan(tiny_store, tmp_path_factory.mktemp("run"), steps=10)


def other(value: Any, hint: Any) -> list[Any]:
    """Values that differ from `value`; the first that the section takes is used."""
    if get_origin(hint) is Literal:
        return [choice for choice in get_args(hint) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple):
        return [(10,), (True,), (0.5, 0.6)]
    return ["x"] if isinstance(value, str) else [value + 2, value + 0.25, value + 2.5]


def changed(plan: TrainPlan, key: str) -> TrainPlan | None:
    """The plan with another value of `key`; None where the plan does not hold it."""
    section, _, name = key.partition(".")
    if key == "run.seed":
        return replace(plan, seed=plan.seed + 1)
    place = PLACES.get(section, section)
    held = getattr(plan, place, None)
    if held is None or not hasattr(held, name):
        return None
    for value in other(getattr(held, name), keys()[key]):
        try:
            return replace(plan, **{place: replace(held, **{name: value})})
        except ValueError:
            continue
    raise AssertionError(f"no other value of {key} was found")


@pytest.mark.parametrize("key", sorted(keys()))
def test_a_resume_does_with_a_key_what_the_table_says(plan: TrainPlan, key: str) -> None:
    if key == "rows.block":  # in use with this order alone
        plan = replace(plan, layout=replace(plan.layout, shuffle="block"))
    rule, now = rule_of(key), changed(plan, key)
    saved = json.loads(json.dumps(asdict(plan)))
    if rule == "fixed":
        assert now is not None
        with pytest.raises(ConfigError) as refusal:
            check_identity(plan.identity(), now.identity(), where="here")
        before, after = ({**DEFAULTS, **one.identity()}[key] for one in (plan, now))
        assert f"{key} is {before!r} there and {after!r} here" in str(refusal.value)
    elif now is not None:
        assert rule == "may"
        check_identity(plan.identity(), now.identity(), where="here")
        assert list(changes(saved, now)) == [key]
    assert changes(saved, plan) == {}


def test_a_key_that_is_younger_than_a_checkpoint_had_its_default_then(plan: TrainPlan) -> None:
    identity, saved = plan.identity(), json.loads(json.dumps(asdict(plan)))
    del identity["model.clamp_len"], saved["trainer"]["spike_factor"]
    check_identity(identity, plan.identity(), where="here")
    assert changes(saved, plan) == {}
    clamped = replace(plan, model=replace(plan.model, clamp_len=7))
    with pytest.raises(ConfigError, match="clamp_len is 0 there and 7 here"):
        check_identity(identity, clamped.identity(), where="here")
    guarded = replace(plan, trainer=replace(plan.trainer, spike_factor=9.0))
    assert changes(saved, guarded) == {"trainer.spike_factor": "0.0 -> 9.0"}
