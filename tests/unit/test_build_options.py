"""What a build may be asked for beyond its defaults, and that the defaults stay what they were."""

import json
import threading
from pathlib import Path

import pytest

from jobs.cli import longrow
from jobs.prepare import store_line
from jobs.show import describe, in_words
from jobs.visible import visible
from pipeline.build import build_store
from pipeline.errors import DataError
from pipeline.finish import BuildReport
from pipeline.layout import check_documents
from pipeline.settings import BuildSettings, SettingsError
from pipeline.store import Store
from pipeline.tokenizer import Tokenizer, train_tokenizer


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


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


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


def test_repeated_texts_are_left_out_of_both_splits_and_listed(home: Path) -> None:
    (home / "in/b.txt").write_text("text 3 " * 9)
    (home / "in/c.txt").write_text("text 3 " * 9)
    whole = build(home, held_out=0.5)
    report = build(home, held_out=0.5, dedup="exact")
    store = Store.open(str(home / "store"))
    assert (whole.documents, report.documents, report.dropped) == (82, 80, 2)
    assert report.tokens == whole.tokens - 2 * 63
    assert report.bytes == whole.bytes - 2 * 63
    ids = sorted([*store.doc_ids("train"), *store.doc_ids("validation")])
    assert [store.text(i) for i in ids] == list(dict.fromkeys(texts(store)))
    assert sum(store.num_tokens("train")) == report.tokens_train
    facts = describe(store)  # and every other count of documents is the same
    assert (facts["documents"], facts["tokens"]) == (store.documents, store.tokens)
    assert (facts["documents"], facts["tokens"]) == (report.documents, report.tokens)
    assert (facts["bytes"], facts["dropped"]) == (report.bytes, 2)
    assert sum(facts["sources"].values()) == report.documents
    assert sum(row["documents"] for row in facts["lengths"]) == report.documents
    assert "documents   80," in in_words(facts)
    dropped = [json.loads(line) for line in lines_of(home / "store/dropped.jsonl")]
    assert [(d["uid"], d["source"], d["same_as"]) for d in dropped] == [
        ("b.txt", "b.txt", 3),
        ("c.txt", "c.txt", 3),
    ]
    assert [d["doc_id"] for d in dropped] == sorted(set(range(82)) - set(ids))
    assert store.verify() == []
    (home / "store/dropped.jsonl").write_text("")
    assert "dropped.jsonl" in Store(store.url, store.manifest).verify()[0]
    assert build(home, held_out=0.5) == whole
    assert not (home / "store/dropped.jsonl").exists()


def test_a_record_that_is_skipped_is_named_and_costs_its_own_part_only(home: Path) -> None:
    build(home)
    before = {path.name for path in (home / "store/parts").glob("*.arrow")}
    report = build(home, skip=("a.jsonl:0",), max_bad="2%")
    after = {path.name for path in (home / "store/parts").glob("*.arrow")}
    assert len(after - before) == 1
    assert report.documents == 80
    assert report.rejected == {"skipped": 1, "broken JSON": 1}
    named = [json.loads(line) for line in lines_of(home / "store/rejects.jsonl")]
    assert (named[0]["reason"], named[0]["detail"]) == ("skipped", "id 0")
    assert build(home, skip=("7", "8")).rejected["skipped"] == 2  # ids may stand anywhere
    kept = texts(Store.open(str(home / "store")))
    assert not {"text 7 " * 9, "text 8 " * 9} & set(kept)


def test_a_text_that_takes_too_long_is_named_and_can_be_skipped(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "in/b.txt").write_text("poison " * 160_000)
    free = threading.Event()
    encode = Tokenizer.encode_utf8

    def stuck(self: Tokenizer, data: bytes) -> object:
        if data.startswith(b"poison"):
            free.wait(30)
        return encode(self, data)

    monkeypatch.setattr(Tokenizer, "encode_utf8", stuck)
    with pytest.raises(DataError, match=r"b\.txt, record 0 .* --skip 'b\.txt:0'"):
        build(home, document_timeout_s=0.2)
    assert not (home / "store/manifest.json").exists()
    assert len(list((home / "store/parts").glob("*.json"))) == 3  # what was done before it
    report = build(home, document_timeout_s=0.2, skip=("b.txt:0",))
    assert report.documents == 80
    free.set()


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", "naïve\u0085 café\r\n"),
        ("cp1252", "“quoted” — 5 €\n"),
        ("utf-16", "naïve 字 \U0001f469\n"),
        ("utf-16-be", "naïve 字 \n"),
        ("shift_jis", "日本語\n"),
    ],
)
def test_other_encodings_are_read_when_they_are_named(home: Path, encoding: str, text: str) -> None:
    record = json.dumps({"text": text, "id": "j"}, ensure_ascii=False)
    (home / "in/a.jsonl").write_bytes(f"{record}\n{record}\n".encode(encoding))
    (home / "in/b.txt").write_bytes(text.encode(encoding))
    (home / "in/c.csv").write_bytes(f'text,n\r\n"{text}",1\r\n'.encode(encoding))
    (home / "in/d.json").write_bytes(f"[{record},\n{record}]".encode(encoding))
    build(home, encoding=encoding)
    assert texts(Store.open(str(home / "store"))) == [text] * 6


def test_bytes_that_are_no_text_of_their_encoding_cost_their_own_record(home: Path) -> None:
    good = '{"text": "日本"}\n'.encode("shift_jis")
    (home / "in/a.jsonl").write_bytes(good + b'{"text": "\xa9\xfd\xc3"}\n' + good)
    (home / "in/b.txt").unlink()
    report = build(home, encoding="shift_jis", max_bad="40%")
    assert (report.documents, report.rejected) == (2, {"not UTF-8": 1})
    with pytest.raises(DataError, match="name its --encoding"):
        build(home)


def test_line_ends_are_kept_unless_they_are_asked_to_change(home: Path) -> None:
    (home / "in/a.jsonl").write_text('{"text": "a\\r\\nb\\rc\\n"}\n')
    (home / "in/b.txt").write_bytes(b"\r\n\r\r\n")
    build(home)
    assert texts(Store.open(str(home / "store"))) == ["a\r\nb\rc\n", "\r\n\r\r\n"]
    build(home, newlines="lf")
    assert texts(Store.open(str(home / "store"))) == ["a\nb\rc\n", "\n\r\n"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_document_tokens": 63},
        {"max_document_tokens": -1},
        {"encoding": "klingon"},
        {"encoding": "base64"},
        {"newlines": "cr"},
        {"dedup": "near"},
        {"document_timeout_s": 0},
        {"separator": "\udcff"},  # as Python has a byte of the command line that is no UTF-8
        {"text_key": "te\udcffxt"},
        {"id_key": "\udcff"},
        {"skip": ("a:1", "\udcff")},
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        BuildSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["README"], "ignored     1 file of no known kind: README (named,"),
        (
            ["b.py", "c.py", "d.py"],
            "ignored     3 files of no known kind: b.py, c.py, d.py (named,",
        ),
        (
            [f"{i}.py" for i in range(4)],
            "ignored     4 files of no known kind: 0.py, 1.py, 2.py, ... (",
        ),
        (["\x1b[2J.py"], "ignored     1 file of no known kind: \\x1b[2J.py (named,"),
    ],
)
def test_every_reader_of_a_folder_says_which_files_it_left_out(
    home: Path, capsys: pytest.CaptureFixture[str], names: list[str], said: str
) -> None:
    (home / "in/a.jsonl").unlink()
    for name in names:
        (home / "in" / name).write_text("left out")
    model, store = str(home / "own.json"), str(home / "store")
    words = [str(home / "in"), "--out"]
    longrow.main(
        ["tokenizer", *words, model, "--model-type", "byte"],
        prog_name="longrow",
        standalone_mode=False,
    )
    assert said in capsys.readouterr().out
    longrow.main(
        ["build", *words, store, "--tokenizer", model, "--no-ray"],
        prog_name="longrow",
        standalone_mode=False,
    )
    assert said in capsys.readouterr().out
    report = build_store([str(home / "in")], tokenizer=model, out=store, settings=BuildSettings())
    assert said.replace("ignored    ", "; ignored") in visible(store_line(report, store))


def test_what_was_to_be_skipped_and_is_nowhere_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip = ("7", "nosuch", "a.jsonl:0", "a.jsonl:3", "b.txt:0")
    report = build(home, skip=skip, max_bad="5%")
    assert (report.rejected["skipped"], report.not_skipped) == (3, ("nosuch", "a.jsonl:3"))
    assert "data.skip names no record by nosuch, a.jsonl:3" in store_line(report, "store")
    (broken,) = (r for r in lines_of(home / "store/rejects.jsonl") if "broken JSON" in r)
    bad = f"a.jsonl:{json.loads(broken)['record']}"  # left out, be it as a bad one
    assert build(home, skip=(bad,), max_bad="5%").not_skipped == ()
    words = ["build", str(home / "in"), "--out", str(home / "other"), "--max-bad", "5%"]
    words += ["--tokenizer", str(home / "byte.json"), "--no-ray", "--skip", "nosuch"]
    longrow.main(words, prog_name="longrow", standalone_mode=False)
    assert "not skipped nosuch: no record has this id or place" in capsys.readouterr().out
    assert build(home, max_bad="5%").not_skipped == ()
