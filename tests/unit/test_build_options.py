"""What a build may be asked for beyond its defaults, and that the defaults stay what they were."""

import json
from pathlib import Path

import pytest

from pipeline.build import build_store
from pipeline.errors import DataError
from pipeline.finish import BuildReport
from pipeline.layout import check_documents
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a tokenizer of bytes and a corpus of 81 documents in 4 tasks."""
    (tmp_path / "byte.json").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"text": f"text {i} " * 9, "id": i}) for i in range(80)]
    (tmp_path / "in/a.jsonl").write_text("\n".join([*lines, "broken\n"]))
    (tmp_path / "in/b.txt").write_text("one document")
    return tmp_path


def build(home: Path, out: str = "store", **settings: object) -> BuildReport:
    return build_store(
        [str(home / "in")],
        tokenizer=str(home / "byte.json"),
        out=str(home / out),
        settings=BuildSettings(**({"task_bytes": 3_000, "max_bad": "5%"} | settings)),  # type: ignore[arg-type]
    )


def texts(store: Store) -> list[str]:
    return [store.text(doc_id) for doc_id in range(store.manifest.documents)]


def test_a_store_without_options_is_that_of_the_first_version(home: Path) -> None:
    build(home)
    keys = sorted(path.stem for path in (home / "store/parts").glob("*.arrow"))
    assert keys == [  # a key hashes all that a part depends on
        "14d48cf61f9de55e5960d025d69c74f8",
        "194018fb420dfad32b8536ab1824078d",
        "529cfb74b1c59fdb8cc58c046e151012",
        "71a636e3e7f5bffc1dc097abf9a15044",
    ]
    record = json.loads((home / f"store/parts/{keys[0]}.json").read_text())
    assert sorted(record) == [
        "bytes", "definition", "documents", "documents_validation", "empty", "key", "longest",
        "rejects", "sha256", "size_bytes", "tokens", "tokens_validation",
    ]  # fmt: skip
    manifest = json.loads((home / "store/manifest.json").read_text())
    assert sorted(manifest) == [
        "bos", "bytes", "documents", "dtype", "duplicate_ids", "empty", "eod", "files",
        "fingerprint", "first_duplicates", "format", "held_out", "parts", "rejected", "split_rule",
        "tokens", "vocab_size",
    ]  # fmt: skip


def test_long_texts_are_cut_into_documents_of_their_own_and_counted(home: Path) -> None:
    whole = build(home, "whole")
    (home / "in/b.txt").write_text("".join(f"line {i}\n" for i in range(100)))
    report = build(home, max_document_tokens=70)
    store = Store.open(str(home / "store"))
    assert (report.cut, report.pieces) == (71, 153)
    assert report.documents == whole.documents - 71 + 153
    assert (store.manifest.cut, store.manifest.pieces) == (71, 153)
    assert store.manifest.max_document_tokens == 70
    assert report.longest <= 70
    uids = [store.uid(doc_id) for doc_id in range(report.documents)]
    assert uids[:11] == [*(str(i) for i in range(9)), "9", "10#1"]
    assert [uid for uid in uids if "b.txt" in uid] == [f"b.txt#{i}" for i in range(1, 14)]
    for name, text in (("10", "text 10 " * 9), ("b.txt", (home / "in/b.txt").read_text())):
        pieces = [store.text(i) for i, uid in enumerate(uids) if uid.split("#")[0] == name]
        assert "".join(pieces) == text
    assert store.verify() == []


def test_the_bound_enters_the_task_key_and_off_is_as_before(home: Path) -> None:
    build(home)
    before = {path.name for path in (home / "store/parts").iterdir()}
    build(home, max_document_tokens=70)
    assert not before & {path.name for path in (home / "store/parts").iterdir()}
    build(home, max_document_tokens=0)
    assert before == {path.name for path in (home / "store/parts").iterdir()}


def test_the_way_out_that_too_few_documents_are_told_is_one(home: Path) -> None:
    (home / "in/a.jsonl").unlink()
    (home / "in/b.txt").write_text("".join(f"line {i}\n" for i in range(100)))
    build(home, held_out=0.0)
    count = len(Store.open(str(home / "store")).doc_ids("train"))
    with pytest.raises(DataError, match=r"longrow build --max-document-tokens N"):
        check_documents(8, count)
    build(home, held_out=0.0, max_document_tokens=64)
    check_documents(8, len(Store.open(str(home / "store")).doc_ids("train")))
