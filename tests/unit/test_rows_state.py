"""A saved state is read back as it was, or refused with a sentence that says what is off."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeline.errors import DataError
from pipeline.layout import Layout
from pipeline.reshard import reshard
from pipeline.rows import advance, initial_state, next_reading
from pipeline.rows_state import RowsState
from pipeline.server import lengths_of
from tests.streams import Positions, through_json

LAYOUT = Layout(rows=3, segment=4, seed=1)
LENGTHS = lengths_of(Positions([5, 9, 3, 7, 11]), "train")
STATE = advance(LENGTHS, LAYOUT, initial_state(LAYOUT), 6)


def _set(*path: Any) -> Callable[[Any], None]:
    *way, last, value = path

    def damage(table: Any) -> None:
        for key in way:
            table = table[key]
        table[last] = value

    return damage


DAMAGE: dict[str, Callable[[Any], None]] = {
    "version is 2, this program reads version 1": _set("version", 2),
    "version is True": _set("version", True),
    "step is -1": _set("step", -1),
    "step is 6.0": _set("step", 6.0),
    "step is True": _set("step", True),
    "the state holds .*'extra'": _set("extra", 1),
    "sources is dict, a list": _set("sources", {}),
    "sources is empty": _set("sources", []),
    r"sources\[0\] holds int": _set("sources", [3]),
    r"sources\[0\].next_index is 'a'": _set("sources", 0, "next_index", "a"),
    "rows holds list": _set("rows", []),
    r"rows.began\[1\] is None": _set("rows", "began", 1, None),
    r"rows.doc_id\[0\] is -2": _set("rows", "doc_id", 0, -2),
    r"rows.began\[2\] is 9223372036854775808": _set("rows", "began", 2, 2**63),
    "the rows differ in number": _set("rows", "epoch", [0, 0]),
}


@pytest.mark.parametrize(("says", "damage"), DAMAGE.items())
def test_a_damaged_state_is_refused_by_name(says: str, damage: Callable[[Any], None]) -> None:
    table = copy.deepcopy(STATE.to_json())
    damage(table)
    with pytest.raises(DataError, match=says):
        RowsState.from_json(table)


OTHER = replace(LAYOUT, rows=2, segment=5)
MOVED = advance(LENGTHS, OTHER, reshard(LENGTHS, STATE, old=LAYOUT, new=OTHER).state, 1)
DAMAGED_RESTART: dict[str, Callable[[Any], None]] = {
    "restart holds NoneType": _set("restart", None),
    r"restart.step is -1": _set("restart", "step", -1),
    r"restart.pending is int, a list": _set("restart", "pending", 3),
    r"restart.pending\[0\] is \[1\], doc_id and epoch": _set("restart", "pending", [[1]]),
    r"restart.pending\[0\] is 'a'": _set("restart", "pending", [["a", 0]]),
    r"restart.tokens_dealt is 0.5": _set("restart", "tokens_dealt", 0.5),
    "document 77 was in progress when the rows changed": _set("restart", "pending", [[77, 0]]),
    "tokens were dealt, now its rows hold": _set("restart", "tokens_dealt", 1),
}


@pytest.mark.parametrize(("says", "damage"), DAMAGED_RESTART.items())
def test_a_damaged_restart_is_refused_by_name(says: str, damage: Callable[[Any], None]) -> None:
    assert through_json(MOVED) == MOVED
    table = copy.deepcopy(MOVED.to_json())
    damage(table)
    with pytest.raises(DataError, match=says):
        next_reading(LENGTHS, OTHER, RowsState.from_json(table))


@pytest.mark.parametrize("data", [None, [], "state", {}])
def test_what_is_no_state_is_refused(data: Any) -> None:
    with pytest.raises(DataError, match="the state holds"):
        RowsState.from_json(data)


def test_a_state_survives_json() -> None:
    assert through_json(STATE) == STATE
    assert initial_state(LAYOUT) != STATE
    assert STATE != "a state"


MISFITS = {
    "ahead of the epoch": _set("rows", "epoch", 0, 99),
    "row 2 has read 24 tokens": _set("rows", "began", 2, 24),
    "documents were dealt before step 0": _set("step", 0),
    "tokens were dealt, now": _set("sources", 0, "tokens_dealt", 1),
    "mixes 2 sources": _set("sources", [{"epoch": 0, "next_index": 0, "tokens_dealt": 0}] * 2),
}


@pytest.mark.parametrize(("says", "change"), MISFITS.items())
def test_a_state_that_contradicts_itself_is_refused(
    says: str, change: Callable[[Any], None]
) -> None:
    table = copy.deepcopy(STATE.to_json())
    change(table)
    with pytest.raises(DataError, match=says):
        next_reading(LENGTHS, LAYOUT, RowsState.from_json(table))
