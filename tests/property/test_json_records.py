"""The fast parser of JSON records decides nothing: whatever it reads, the standard library says."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.corpus import Document, Reject, SourceOptions
from pipeline.json_records import _by_the_book, json_record
from pipeline.json_values import DEEPEST, is_too_deep

OPTIONS = [
    SourceOptions(),
    SourceOptions(text_key="a.text", id_key="a.id"),
    SourceOptions(text_key="a"),
]
ODD = [
    '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00 \\ud800"', '"\\u0000"', '"\\/\\b\\f"', '"\u2028"',
    '"\x7f"', '"\t"', '"\\x"', '"\\u12"', '"\ufeff"', "NaN", "Infinity", "-Infinity", "-0", "-0.0",
    "1e400", "1E5", "01", "1.", ".5", "+1", "12345678901234567890123456789", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "1.0", "true", "null",
    "[]", "{}", "[1,]", "{,}", '{"text": "in", "id": 3}', '{"text": {"text": "deep"}}',
]  # fmt: skip
odd = st.sampled_from(ODD)
values = odd | st.text(max_size=8).map(json.dumps) | st.integers().map(str)
keys = st.sampled_from(["text", "id", "a", "a.text", "te\\u0078t", "é"]).map(lambda k: f'"{k}"')
blanks = st.sampled_from(["", " ", "\t", "\r", "\n", "\x0b", "\xa0"])
objects = st.lists(st.tuples(keys, values, blanks), max_size=6).map(
    lambda pairs: "{" + ",".join(f"{b}{k}{b}:{v}" for k, v, b in pairs) + "}"
)
nested = st.tuples(objects, objects).map(lambda two: two[0][:-1] + ',"a":' + two[1] + "}")
whole = (objects | nested | values).map(lambda text: text.encode("utf-8", "surrogatepass"))


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A record with one byte changed, dropped or put in."""
    line = draw(whole)
    at = draw(st.integers(0, len(line)))
    return line[:at] + draw(st.binary(max_size=2)) + line[at + draw(st.integers(0, 1)) :]


@pytest.mark.parametrize("options", OPTIONS)
@given(line=whole | broken())
@example(line=b'{"text": "a", "text": "b"}')
@example(line=b'{"text": "a", "id": 1, "id": "b"}')
@example(line=b'{"text": "a", "id": true}')
@example(line=b'{"text": "a", "id": 1.0}')
@example(line=b'{"text": "a", "id": 18446744073709551617}')
@example(line=b'{"text": "a", "n": ' + b"1" * 5_000 + b"}")
@example(line=b'{"text": "a", "id": ' + b"1" * 4_300 + b"}")
@example(line=b'{"text": "a", "id": "\\ud800"}')
@example(line=b'{"text": "a", "other": "\\ud800"}')
@example(line=b'{"text": "a", "\\ud800": 1}')
@example(line=b'{"text": "a\xed\xa0\x80"}')
@example(line=b'\xef\xbb\xbf{"text": "a"}')
@example(line=b'{"text": "a"} {"text": "b"}')
@example(line=b'{"text": "a", "deep": ' + b"[" * 150 + b"]" * 150 + b"}")
def test_a_record_means_what_the_standard_library_reads_in_it(
    options: SourceOptions, line: bytes
) -> None:
    found = json_record("s", 7, line, options)
    assert found == _by_the_book("s", 7, line, options)
    if isinstance(found, Document):
        (found.uid + found.text).encode()  # no half of a pair in it


def nested_in(depth: int, record: bytes) -> Document | Reject:
    """The verdict on a record where the stack is `depth` calls deep already."""
    return nested_in(depth - 1, record) if depth else json_record("s", 7, record, OPTIONS[0])


@pytest.mark.parametrize(
    ("levels", "good"),
    [(1, True), (DEEPEST - 1, True), (DEEPEST, False), (600, False), (1_000, False)],
)
@pytest.mark.parametrize("odd_id", [b"true", b'"a"'])  # the standard library reads it, the fast one
def test_the_verdict_on_nested_records_is_that_of_their_levels_and_of_nothing_else(
    levels: int, good: bool, odd_id: bytes
) -> None:
    deep = b"[" * levels + b"]" * levels
    record = b'{"text": "[[{\\"[", "id": ' + odd_id + b', "deep": ' + deep + b"}"
    found = [nested_in(depth, record) for depth in (0, 500)]
    assert found[0] == found[1]
    assert isinstance(found[0], Document) == good
    assert isinstance(found[0], Document) or found[0].detail == "more than 256 levels of brackets"


@given(
    text=st.text(alphabet='[]{}"\\a', max_size=300).map(lambda text: text * 8),
    wide=st.integers(0, 400),
)
def test_brackets_in_a_text_and_beside_each_other_nest_nothing(text: str, wide: int) -> None:
    record = json.dumps({"text": text, "wide": [[]] * wide}).encode()
    assert not is_too_deep(record)
    assert isinstance(json_record("s", 7, record, OPTIONS[0]), Document)
