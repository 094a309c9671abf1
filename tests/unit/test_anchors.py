"""An anchor is read back as it was, or refused with a sentence that says what is off."""

import json
from typing import Any

import pytest

from pipeline.anchors import Anchor, at, first_anchor
from pipeline.errors import DataError
from pipeline.layout import Layout, RowsError
from pipeline.rows import advance
from tests.streams import Positions

LAYOUT = Layout(rows=3, segment=4, seed=1, shuffle="block", block=2, boundary="pad")
LENGTHS = Positions([5, 9, 3, 7, 11]).by_length("train")
FIRST = first_anchor(LAYOUT, store="s3://a", store_fingerprint="f")


def test_an_anchor_survives_json_and_goes_on_as_the_stream_does() -> None:
    later = at(FIRST, LENGTHS, 6)
    saved = Anchor.from_json(json.loads(json.dumps(later.to_json())))
    assert (saved.store, saved.store_fingerprint, saved.layout) == ("s3://a", "f", LAYOUT)
    assert saved.state == later.state == advance(LENGTHS, LAYOUT, FIRST.state, 6)
    assert at(saved, LENGTHS, 9).state == at(FIRST, LENGTHS, 9).state


def test_a_step_before_the_anchor_is_refused() -> None:
    with pytest.raises(RowsError, match="Step 5 lies before 6"):
        at(at(FIRST, LENGTHS, 6), LENGTHS, 5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "version 2 was found"),
        ({"layout": {"rows": 0}}, r"rows\.rows = 0"),
        ({"layout": {"lanes": 3}}, "lanes"),
        ({"rows": {}}, "state of the rows cannot be used"),
    ],
)
def test_a_damaged_anchor_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        Anchor.from_json(FIRST.to_json() | change)
    with pytest.raises(DataError, match="store"):
        Anchor.from_json({key: one for key, one in FIRST.to_json().items() if key != "store"})
