"""The fast parser of JSON records decides nothing: whatever it reads, the standard library says."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.corpus import Document, SourceOptions
from pipeline.json_records import _by_the_book, json_record

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
@example(line=b'{"text": "a", "deep": ' + b"[" * 100_000 + b"}")
def test_a_record_means_what_the_standard_library_reads_in_it(
    options: SourceOptions, line: bytes
) -> None:
    found = json_record("s", 7, line, options)
    assert found == _by_the_book("s", 7, line, options)
    if isinstance(found, Document):
        assert (found.uid + found.text).encode()
