"""What a file is, where it is cut, and which records are bad."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard

from pipeline import reasons, records
from pipeline.corpus import Document, Plan, Reject, SourceOptions, plan_tasks
from pipeline.errors import DataError
from pipeline.records import hold, read_task
from tests.slow_files import SlowFiles

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


def read(plan: Plan) -> list[Document | Reject]:
    return [item for task in plan.tasks for item in read_task(task, held=hold(task))]


def plan(*inputs: Path, task_bytes: int = 1 << 20, **options: Any) -> Plan:
    return plan_tasks(
        [str(path) for path in inputs], task_bytes=task_bytes, options=SourceOptions(**options)
    )


def items_of(path: Path, data: bytes, **options: Any) -> list[Document | Reject]:
    path.write_bytes(data)
    return read(plan(path, **options))


def texts_of(path: Path, data: bytes, **options: Any) -> list[str]:
    items = items_of(path, data, **options)
    assert all(isinstance(item, Document) for item in items), items
    return [item.text for item in items if isinstance(item, Document)]


def jsonl(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": t}, ensure_ascii=False).encode() + b"\n" for t in texts)


ODD = ["a\u2028b\x85c", "\r\n x \r", "\ufeffmark", "nul \x00 \x1c", "", "e\u0301 \U0001f469\u200d"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.dat", "a.txt", "a.gz"])
def test_jsonl_is_known_by_its_bytes_and_its_texts_come_out_as_they_are(
    tmp_path: Path, name: str
) -> None:
    assert texts_of(tmp_path / name, jsonl(*ODD)) == ODD
    assert texts_of(tmp_path / name, jsonl(*ODD).removesuffix(b"\n")) == ODD
    assert texts_of(tmp_path / name, b"\xef\xbb\xbf\r\n" + jsonl(*ODD)) == ODD
    assert texts_of(tmp_path / name, jsonl(*ODD).replace(b"\n", b"\r\n \n")) == ODD


@pytest.mark.parametrize("kind", PACK)
def test_a_packed_file_gives_the_documents_of_the_plain_one(tmp_path: Path, kind: str) -> None:
    plain = items_of(tmp_path / "a.jsonl", jsonl(*ODD))
    two = PACK[kind](jsonl(*ODD[:2])) + PACK[kind](jsonl(*ODD[2:]))
    for data in (PACK[kind](jsonl(*ODD)), two):
        assert items_of(tmp_path / "a.jsonl", data) == plain  # the name says nothing of packing


@pytest.mark.parametrize("kind", PACK)
def test_a_packed_file_that_is_cut_keeps_what_came_before_and_says_so(
    tmp_path: Path, kind: str
) -> None:
    good = PACK[kind](jsonl("one", "two"))
    items = items_of(tmp_path / "a.jsonl", good + PACK[kind](jsonl("three"))[:-6])
    assert [i.text for i in items if isinstance(i, Document)][:2] == ["one", "two"]
    assert isinstance(items[-1], Reject)
    assert items[-1].reason == reasons.DAMAGED


def test_a_txt_file_is_one_document_with_every_byte_but_the_bom(tmp_path: Path) -> None:
    text = "{ no json\r\n\x00 \u2028\n\n"
    assert texts_of(tmp_path / "a.txt", b"\xef\xbb\xbf" + text.encode()) == [text]
    assert texts_of(tmp_path / "a.txt", b'{"name": 1}\nprose') == ['{"name": 1}\nprose']
    assert texts_of(tmp_path / "a.txt", b"") == [""]


def test_a_wikitext_file_is_cut_at_its_titles_and_nothing_is_lost(tmp_path: Path) -> None:
    one = " = One = \n \n text = = \n = not a title = \n = = Section = = \n more \n \n"
    two = " = Two = \n x"
    assert texts_of(tmp_path / "wiki.tokens", f" \n{one}{two}".encode()) == [one, two]


@pytest.mark.parametrize(
    ("line", "reason", "at"),
    [
        (b'{"text": "cut', reasons.BROKEN_JSON, 0),
        (b'{"text": "\xff"}', reasons.NOT_UTF8, 10),
        (b'["text"]', reasons.NOT_AN_OBJECT, 0),
        (b'{"other": 1}', reasons.NO_TEXT, 0),
        (b'{"text": null}', reasons.NO_TEXT, 0),
        (b'{"text": 7}', reasons.WRONG_TYPE, 0),
        (b'{"text": "\\ud800"}', reasons.LONE_SURROGATE, 0),
        (b'{"text": "x", "id": "\\udfff"}', reasons.LONE_SURROGATE, 0),
        (b"[" * 100_000, reasons.BROKEN_JSON, 0),
        (b'{"text": "' + b"x" * 200_000 + b'"}', reasons.TOO_LARGE, 0),
        (b'{"text": "x", "n": ' + b"9" * 5_000 + b"}", reasons.BROKEN_JSON, 0),
    ],
)
def test_a_bad_record_is_named_and_its_neighbours_are_kept(
    tmp_path: Path, line: bytes, reason: str, at: int
) -> None:
    before = jsonl("before")
    path = tmp_path / "a.jsonl"
    items = items_of(path, before + line + b"\n" + jsonl("after"), max_record_bytes=150_000)
    first, bad, last = items
    assert isinstance(first, Document)
    assert isinstance(last, Document)
    assert isinstance(bad, Reject)
    assert (first.text, last.text, bad.reason) == ("before", "after", reason)
    assert (bad.source, bad.record, bad.offset) == ("a.jsonl", len(before), len(before) + at)


def test_a_txt_file_that_is_no_utf8_is_rejected_at_its_first_bad_byte(tmp_path: Path) -> None:
    (bad,) = items_of(tmp_path / "a.txt", b"good \xe9 bad")
    assert isinstance(bad, Reject)
    assert (bad.reason, bad.offset, bad.detail) == (
        reasons.NOT_UTF8,
        5,
        "byte 0xE9: invalid continuation byte",
    )


def test_an_id_comes_from_its_key_and_else_from_the_place(tmp_path: Path) -> None:
    data = b'{"text":"a","id":"x"}\n{"text":"b","id":7}\n{"text":"c","id":null}\n{"m":{"text":"d"}}'
    (tmp_path / "a.jsonl").write_bytes(data)
    items = read(plan(tmp_path / "a.jsonl"))
    assert [i.uid for i in items if isinstance(i, Document)] == ["x", "7", "a.jsonl:42"]
    nested = read(plan(tmp_path / "a.jsonl", text_key="m.text"))[-1]
    assert isinstance(nested, Document)
    assert nested.text == "d"


def test_a_format_that_cannot_be_read_is_refused_before_the_build(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PK\x03\x04....")
    with pytest.raises(DataError, match="is a zip file"):
        plan(tmp_path / "a.parquet")


def test_a_folder_gives_its_corpus_files_and_says_what_it_left_out(tmp_path: Path) -> None:
    for name in ("README.md", "a.txt", "b.jsonl.gz"):
        (tmp_path / name).write_text("x")
    made = plan(tmp_path)
    assert [e.source for task in made.tasks for e in task.extents] == ["a.txt", "b.jsonl.gz"]
    assert made.ignored == ("README.md",)
    assert len(plan(tmp_path / "README.md").tasks) == 1  # asked for by name, it is taken
    (tmp_path / "a.txt").unlink()
    (tmp_path / "b.jsonl.gz").unlink()
    with pytest.raises(DataError, match="No file of a corpus"):
        plan(tmp_path)


def test_a_file_more_moves_the_borders_near_it_and_no_others(tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / f"{i:03}.txt").write_text("x" * 100)
    before = plan(tmp_path, task_bytes=2_000)
    (tmp_path / "0505.txt").write_text("x" * 100)
    after = plan(tmp_path, task_bytes=2_000)
    assert max(task.num_bytes for task in after.tasks) <= 2_000
    assert len(set(after.tasks) - set(before.tasks)) <= 3
    assert len(before.tasks) < 40


def test_a_file_that_changes_under_the_reader_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl("one"))
    task = plan(path).tasks[0]
    held, not_held = hold(task), hold(task, limit=7)
    assert held.identity == not_held.identity
    path.write_bytes(jsonl("two"))
    with pytest.raises(DataError, match=r"a\.jsonl changed while it was read"):
        list(read_task(task, held=not_held))
    (item,) = read_task(task, held=held)  # what was hashed is what is built
    assert isinstance(item, Document)
    assert item.text == "one"


@pytest.mark.parametrize("scheme", ["", "slow://"])
@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_file_that_is_replaced_at_the_first_look_at_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, limit: int
) -> None:
    fsspec.register_implementation("slow", SlowFiles, clobber=True)
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl("one", "two"))
    (task,) = plan_tasks([scheme + str(path)], task_bytes=1 << 20).tasks
    monkeypatch.setattr(records, "CHUNK", 10)
    hashed = records._hashed

    def replacing(pieces: Any, digest: Any) -> Any:
        for number, piece in enumerate(hashed(pieces, digest)):
            if number == 1:
                (tmp_path / "new").write_bytes(jsonl("six", "ten"))
                (tmp_path / "new").replace(path)
            yield piece

    monkeypatch.setattr(records, "_hashed", replacing)
    with pytest.raises(DataError, match=r"a\.jsonl changed while it was read"):
        hold(task, limit=limit)


@pytest.mark.parametrize("levels", [600, 100_000])
def test_a_first_record_that_is_nested_too_deep_leaves_its_file_what_it_is(
    tmp_path: Path, levels: int
) -> None:
    bad = '{"text": "a", "deep": ' + "[" * levels + "]" * levels + "}"
    data = bad.encode() + b'\n{"text": "b"}\n'

    def found(depth: int) -> list[Document | Reject]:
        return found(depth - 1) if depth else items_of(tmp_path / "a.txt", data)

    first, second = found(0)
    assert isinstance(first, Reject)
    assert first.reason == reasons.BROKEN_JSON
    assert isinstance(second, Document)
    assert second.text == "b"
    assert found(500) == [first, second]
