"""JSON arrays and CSV, cut into pieces anywhere, give the records a library finds in the whole."""

import csv
import io
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus import Document, Reject, SourceOptions
from pipeline.json_values import split_values
from pipeline.parsers import parse
from tests.property.test_text_survives import texts

values = st.recursive(
    st.none()
    | st.integers()
    | st.floats(allow_nan=False)
    | texts
    | st.sampled_from(['"', "\\", "[{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def chunks(data: bytes, size: int) -> list[tuple[int, bytes]]:
    return [(at, data[at : at + size]) for at in range(0, len(data), size)]


@given(
    records=st.lists(values, max_size=6),
    size=st.integers(1, 50),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    bom=st.sampled_from([b"", b" \n"]),
)
def test_the_elements_of_an_array_are_found(
    records: list[object], size: int, indent: int | None, ascii_only: bool, bom: bytes
) -> None:
    data = bom + json.dumps(records, indent=indent, ensure_ascii=ascii_only).encode()
    found = list(split_values(chunks(data, size), limit=1 << 20))
    assert [json.loads(value or b"") for _, value in found] == records
    assert all(data[at:].startswith(value or b"-") for at, value in found)


@given(
    records=st.lists(st.dictionaries(texts, values, max_size=3), max_size=5),
    size=st.integers(1, 50),
    between=st.sampled_from(["", "\n", " \r\n"]),
)
def test_objects_one_after_the_other_are_found(
    records: list[object], size: int, between: str
) -> None:
    data = between.join(json.dumps(record, indent=1) for record in records).encode()
    found = list(split_values(chunks(data, size), limit=1 << 20))
    assert [json.loads(value or b"") for _, value in found] == records


@given(
    before=st.lists(texts, max_size=3),
    bad=st.sampled_from(
        [b'{"text": 1}', b"7", b'{"text": "\xff"}', b'{"a" 1}', b'{"text": "\\q"}']
    ),
    after=st.lists(texts, max_size=3),
    size=st.integers(1, 50),
)
def test_a_bad_element_costs_no_other(
    before: list[str], bad: bytes, after: list[str], size: int
) -> None:
    good = [json.dumps({"text": text}).encode() for text in before]
    more = [json.dumps({"text": text}).encode() for text in after]
    data = b"[" + b",".join([*good, bad, *more]) + b"]"
    items = list(parse("json", "a", chunks(data, size), SourceOptions()))
    assert [i.text for i in items if isinstance(i, Document)] == before + after
    (reject,) = [i for i in items if isinstance(i, Reject)]
    assert data[reject.record :].startswith(bad)


@given(text=texts, size=st.integers(1, 50), limit=st.integers(20, 60))
def test_an_element_above_the_limit_is_left_out_and_the_next_one_read(
    text: str, size: int, limit: int
) -> None:
    long = json.dumps({"text": "x" * limit + text})
    data = f'[{{"text": "a"}}, {long},\n{{"text": "b"}}]'.encode()
    options = SourceOptions(max_record_bytes=limit)
    items = list(parse("json", "a", chunks(data, size), options))
    assert [i.text for i in items if isinstance(i, Document)] == ["a", "b"]
    assert [i.reason for i in items if isinstance(i, Reject)] == ["too large"]


def test_an_array_that_is_never_closed_says_so() -> None:
    for data in (b'[{"text": "a"}', b'[{"text": "a"},', b'[{"text": "a"}, {"text": "b'):
        items = list(parse("json", "a", [(0, data)], SourceOptions()))
        assert [i.text for i in items if isinstance(i, Document)] == ["a"]
        assert {i.reason for i in items if isinstance(i, Reject)} == {"broken JSON"}


@given(
    rows=st.lists(st.tuples(texts, texts), max_size=6),
    size=st.integers(1, 50),
    delimiter=st.sampled_from([",", "\t", ";"]),
    how=st.sampled_from(  # the writer leaves a lone CR bare where lines end in LF
        [("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]
    ),
)
def test_csv_gives_the_texts_that_were_written(
    rows: list[tuple[str, str]], size: int, delimiter: str, how: tuple[str, Any]
) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=how[0], quoting=how[1])
    writer.writerow(["other", "text"])
    writer.writerows(rows)
    data = out.getvalue().encode()
    items = list(parse("csv", "a", chunks(data, size), SourceOptions()))
    assert [i.text for i in items if isinstance(i, Document)] == [text for _, text in rows]
    places = [i.record for i in items]
    assert places == sorted(set(places))
    assert all(data[place - 1 : place] == b"\n" for place in places)
