"""What a run was told is read back from its own words, and no mistake hides another."""

import json
import tomllib
from typing import Any, Literal, get_args, get_origin

from hypothesis import assume, given
from hypothesis import strategies as st

from jobs.config import RunConfig, from_dict, keys, read_config
from jobs.toml import to_toml
from pipeline.mixture import Weighted
from trainer.errors import ConfigError

text = st.text(st.characters(exclude_categories=["Cs"]))
value = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), text, st.lists(st.integers() | text)
)
name = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@given(tables=st.dictionaries(name, st.dictionaries(name, value)))
def test_written_toml_is_read_back(tables: dict[str, dict[str, Any]]) -> None:
    assert tomllib.loads(to_toml(tables)) == tables


def values_of(key: str, hint: Any) -> st.SearchStrategy[Any]:
    if key in {"run.name", "data.max_bad"}:
        return st.from_regex(r"[1-9]{1,2}", fullmatch=True)
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    kinds = {
        bool: st.booleans(),
        int: st.sampled_from([2, 4, 64]),
        float: st.floats(0.01, 0.9),
        str: text,
        tuple[str, ...]: st.lists(text),
        tuple[int, ...]: st.just([1, 2]),
        tuple[Weighted, ...]: st.lists(
            st.fixed_dictionaries({"store": st.just("a") | text, "weight": st.floats(0.1, 9)})
        ),
    }
    return kinds.get(hint, st.nothing())


some_keys = st.dictionaries(st.sampled_from(sorted(keys())), st.none(), max_size=8)


@given(data=st.data(), chosen=some_keys)
def test_a_config_is_read_back_from_its_own_words(
    data: st.DataObject, chosen: dict[str, None]
) -> None:
    tables: dict[str, dict[str, Any]] = {}
    for key in chosen:
        strategy = values_of(key, keys()[key])
        if not strategy.is_empty:
            section, _, last = key.partition(".")
            tables.setdefault(section, {})[last] = data.draw(strategy, label=key)
    try:
        config = from_dict(tables)
    except ConfigError:
        assume(False)  # sections that do not fit together; too many of them fail the test
        return
    assert_read_back(config)


def test_the_defaults_are_read_back_from_their_own_words() -> None:
    assert_read_back(read_config())


def assert_read_back(config: RunConfig) -> None:
    assert from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert from_dict(tomllib.loads(config.to_toml())) == config


@given(wrong=st.sets(st.sampled_from(sorted(keys())), min_size=1))
def test_every_mistyped_key_is_named_whatever_else_is_wrong(wrong: set[str]) -> None:
    tables: dict[str, dict[str, Any]] = {}
    for key in wrong:
        section, _, last = key.partition(".")
        tables.setdefault(section, {})[last] = {"no": "key holds a table"}
    try:
        from_dict(tables)
    except ConfigError as refusal:
        told = str(refusal).splitlines()
        assert {line.partition(" = ")[0] for line in told} == wrong
        assert len(told) == len(wrong)
    else:
        raise AssertionError("a table was taken for a value")
