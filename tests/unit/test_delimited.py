"""CSV by its columns, and what does not fit is rejected and not guessed."""

from pathlib import Path

import pytest

from pipeline import reasons
from pipeline.corpus import Document, Reject
from pipeline.errors import DataError
from tests.unit.test_corpus import items_of, texts_of

CSV = b'id,text,n\r\nx,"one ""quoted""\r\n\x00 line",1\r\n,two,2\r\n\r\n'


def test_csv_is_known_by_its_name_or_its_columns(tmp_path: Path) -> None:
    want = ['one "quoted"\r\n\x00 line', "two"]
    for name in ("a.csv", "a.dat", "a.tsv", "a"):
        assert texts_of(tmp_path / name, CSV) == want
        assert texts_of(tmp_path / name, b"\xef\xbb\xbf" + CSV.removesuffix(b"\r\n")) == want
    assert texts_of(tmp_path / "b.tsv", b"text\tn\none, two\t3\n") == ["one, two"]
    assert texts_of(tmp_path / "a.txt", CSV) == [CSV.decode()]
    items = items_of(tmp_path / "a.csv", CSV)
    assert [i.uid for i in items if isinstance(i, Document)] == ["x", f"a.csv:{CSV.index(b',two')}"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"one column", reasons.WRONG_COLUMNS),
        (b"a,b,c,d", reasons.WRONG_COLUMNS),
        (b'"a"b,c,d', reasons.BROKEN_CSV),
        (b"a,\xff,c", reasons.NOT_UTF8),
        (b"a," + b"x" * 400 + b",c", reasons.TOO_LARGE),
    ],
)
def test_a_bad_record_is_named_and_its_neighbours_are_kept(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    data = b"id,text,n\n1,before,1\n" + line + b"\n3,after,1\n"
    items = items_of(tmp_path / "a.csv", data, max_record_bytes=300)
    assert isinstance(items[0], Document)
    assert isinstance(items[-1], Document)
    assert (items[0].text, items[-1].text) == ("before", "after")
    first = items[1]
    assert isinstance(first, Reject)
    assert (first.reason, first.record) == (reason, 21)


def test_a_csv_file_without_the_column_is_refused_before_the_build(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a\.csv names no column 'text' .*\(body,n\)\..*--text-key"
    ):
        items_of(tmp_path / "a.csv", b"body,n\nx,1\n")
    assert items_of(tmp_path / "a.csv", b"") == []
