"""A store is a function of its corpus: not of where, when or how often it was built."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from jobs.entry import Exit, explain
from pipeline import builder, finish
from pipeline.build import build_store
from pipeline.errors import DataError
from pipeline.files import sha256_of, write_whole
from pipeline.finish import BuildReport
from pipeline.part import Part
from pipeline.progress import BuildProgress
from pipeline.settings import BuildSettings, SettingsError
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a tokenizer and a corpus of three files, about 20 tasks of 500 bytes."""
    (tmp_path / "byte.json").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    (tmp_path / "in/deep").mkdir(parents=True)
    lines(tmp_path / "in/a.jsonl", [f"text {i} " * 9 for i in range(80)])
    (tmp_path / "in/deep/b.jsonl.gz").write_bytes(
        gzip.compress((tmp_path / "in/a.jsonl").read_bytes().replace(b"text ", b"more "))
    )
    (tmp_path / "in/c.txt").write_text("one document")
    return tmp_path


def lines(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": t, "id": i}) + "\n" for i, t in enumerate(texts)))


def build(home: Path, out: str = "store", inputs: str = "in", **settings: object) -> BuildReport:
    return build_store(
        [str(home / inputs)],
        tokenizer=str(home / "byte.json"),
        out=str(home / out),
        settings=BuildSettings(**({"task_bytes": 500} | settings)),  # type: ignore[arg-type]
    )


def content(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def test_a_corpus_that_moved_makes_the_same_bytes_and_none_of_them_tells_where_it_was(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(home)
    shutil.copytree(home / "in", home / "elsewhere/in")
    build(home, "other", "elsewhere/in")
    monkeypatch.chdir(home / "elsewhere")
    build_store(
        ["in"],
        tokenizer="../byte.json",
        out="../third",
        settings=BuildSettings(task_bytes=500),
    )
    assert content(home / "store") == content(home / "other") == content(home / "third")
    for data in content(home / "store").values():
        assert home.name.encode() not in data


def test_a_second_build_writes_no_part(home: Path) -> None:
    first = build(home)
    before = {path: path.stat().st_ino for path in (home / "store/parts").iterdir()}
    assert len(before) > 30
    assert build(home) == first
    assert {path: path.stat().st_ino for path in (home / "store/parts").iterdir()} == before


def test_a_changed_corpus_builds_what_changed_and_equals_a_fresh_build(home: Path) -> None:
    build(home)
    before = set((home / "store/parts").iterdir())
    text = (home / "in/a.jsonl").read_text()
    (home / "in/a.jsonl").write_text(text.replace("text 70 text", "TEXT 70 text"))
    (home / "in/c.txt").unlink()
    build(home)
    build(home, "fresh")
    assert content(home / "store") == content(home / "fresh")
    assert 0 < len(set((home / "store/parts").iterdir()) - before) <= 6


def test_another_tokenizer_or_split_makes_other_parts(home: Path) -> None:
    build(home)
    before = set((home / "store/parts").iterdir())
    build(home, held_out=0.5)
    assert not before & set((home / "store/parts").iterdir())
    assert Store.open(str(home / "store")).verify() == []


def test_a_part_that_was_damaged_is_built_again(home: Path) -> None:
    build(home)
    whole = content(home / "store")
    parts = sorted((home / "store/parts").glob("*.arrow"))
    parts[0].write_bytes(b"short")
    parts[1].unlink()
    parts[2].with_suffix(".json").write_text("{")
    parts[3].with_suffix(".json").write_text("[]")
    build(home)
    assert content(home / "store") == whole


def test_empty_documents_are_counted_and_kept_out(home: Path) -> None:
    lines(home / "in/a.jsonl", ["", "first", "", "second", " ", ""])
    report = build(home, inputs="in/a.jsonl")
    store = Store.open(str(home / "store"))
    assert (report.documents, report.empty) == (3, 3)
    assert [store.text(i) for i in range(3)] == ["first", "second", " "]
    assert [store.uid(i) for i in range(3)] == ["1", "3", "4"]


def test_ids_that_stand_twice_are_kept_and_reported(home: Path) -> None:
    report = build(home)  # a.jsonl and b.jsonl.gz number their records alike
    assert report.duplicate_ids == 80
    assert report.documents == 161
    manifest = Store.open(str(home / "store")).manifest
    assert len(manifest.first_duplicates) == 10
    assert set(manifest.first_duplicates.values()) == {2}


def test_too_many_bad_records_fail_the_build_and_the_first_three_are_named(home: Path) -> None:
    bad = [b"{", b'{"text": 1}', b'{"text": "\xff"}', b"[]"]
    good = [b'{"text": "good"}'] * 96
    (home / "in/a.jsonl").write_bytes(b"\n".join(good + bad))
    with pytest.raises(DataError, match=r"4 of 100 records are bad, .* allows 3\.9%") as caught:
        build(home, inputs="in/a.jsonl", max_bad="3.9%")
    for says in ("record at byte 1,632: broken JSON", "wrong type", "not UTF-8 at byte 1,656"):
        assert says in str(caught.value)
    assert "not an object" not in str(caught.value)
    assert not (home / "store/manifest.json").exists()
    report_lines = (home / "store/rejects.jsonl").read_text().splitlines()
    listed = [json.loads(line) for line in report_lines]
    assert [reject["reason"] for reject in listed] == [
        "broken JSON",
        "wrong type",
        "not UTF-8",
        "not an object",
    ]
    report = build(home, inputs="in/a.jsonl", max_bad="4%")
    assert report.documents == 96
    assert sum(report.rejected.values()) == 4
    assert build(home, inputs="in/a.jsonl", max_bad="4") == report
    with pytest.raises(DataError, match="allows 3"):
        build(home, inputs="in/a.jsonl", max_bad="3")


def test_a_damaged_archive_fails_the_build_unless_it_is_allowed(home: Path) -> None:
    packed = home / "in/deep/b.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"1 damaged archives.*deep/b\.jsonl\.gz"):
        build(home, max_bad="100%")
    report = build(home, max_damaged=1)
    assert report.rejected == {"damaged archive": 1}
    assert 81 < report.documents < 162


@pytest.mark.parametrize("data", [b"", b"\n \n", b'{"text": ""}'])
def test_an_empty_corpus_is_refused(home: Path, data: bytes) -> None:
    (home / "in/a.jsonl").write_bytes(data)
    with pytest.raises(DataError, match=r"The corpus is empty: no document in .*a\.jsonl"):
        build(home, inputs="in/a.jsonl")
    assert not (home / "store/manifest.json").exists()


def test_a_file_in_the_place_of_a_folder_and_the_other_way_round_is_a_sentence(home: Path) -> None:
    (home / "file").write_text("in the way")
    (home / "folder").mkdir()
    for error, out in ((FileExistsError, "file"), (IsADirectoryError, "folder")):
        with pytest.raises(error) as caught:
            write_whole(str(home / out), b"") if out == "folder" else build(home, out=out)
        code, said = explain(caught.value)
        assert (code, str(home / out) in said) == (Exit.BAD_USE, True)
        assert not list(home.glob(".longrow-*"))


def test_a_folder_that_holds_something_else_is_left_alone(home: Path) -> None:
    before = content(home)
    with pytest.raises(DataError, match=r"holds 'byte\.json', which belongs to no store"):
        build(home, ".")
    assert content(home) == before
    (home / "store/parts").mkdir(parents=True)
    (home / "store/parts/stranger.arrow").write_text("")
    with pytest.raises(DataError, match=r"stranger\.arrow is foreign"):
        build(home)


def test_what_is_missing_is_named_before_anything_is_written(home: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere is not there"):
        build(home, inputs="nowhere")
    (home / "byte.json").unlink()
    with pytest.raises(DataError, match=r"No tokenizer at .*byte\.json"):
        build(home)
    assert not (home / "store").exists()


def test_progress_grows_to_the_whole(home: Path) -> None:
    seen: list[BuildProgress] = []
    report = build_store(
        [str(home / "in")],
        tokenizer=str(home / "byte.json"),
        out=str(home / "store"),
        settings=BuildSettings(task_bytes=500),
        progress=seen.append,
    )
    for name in ("bytes_done", "documents", "tokens", "tasks_done"):
        values = [getattr(progress, name) for progress in seen]
        assert values == sorted(values)
    last = seen[-1]
    assert (last.documents, last.tokens) == (report.documents, report.tokens)
    assert (last.bytes_done, last.tasks_done) == (last.bytes, last.tasks)


@pytest.mark.parametrize(
    "wrong",
    [
        {"held_out": 1.0},
        {"held_out": -0.1},
        {"max_bad": "x"},
        {"max_bad": "1.5"},
        {"max_damaged": -1},
        {"task_bytes": 0},
        {"text_key": ""},
        {"max_record_bytes": 0},
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        BuildSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("dedup", ["off", "exact"])
def test_finishing_a_store_opens_one_part_at_a_time(
    home: Path, monkeypatch: pytest.MonkeyPatch, dedup: str
) -> None:
    mapped: list[int] = []

    class Watched(Part):
        def __init__(self, url: str) -> None:
            super().__init__(url)
            maps = Path("/proc/self/maps").read_text()
            mapped.append(sum(str(home / "store/parts") in line for line in maps.splitlines()))

    monkeypatch.setattr(finish, "Part", Watched)
    report = build(home, dedup=dedup)
    assert len(mapped) == report.parts > 10
    assert set(mapped) == {1}


def test_a_bit_that_flipped_in_a_part_of_a_build_cut_short_is_seen_and_the_part_built_anew(
    home: Path,
) -> None:
    build(home)
    whole = content(home / "store")
    (home / "store/manifest.json").unlink()
    part = sorted((home / "store/parts").glob("*.arrow"))[3]
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    build(home)
    assert content(home / "store") == whole
    assert Store.open(str(home / "store")).verify() == []


def test_parts_that_a_manifest_speaks_for_are_not_hashed_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = build(home)
    hashed: list[str] = []
    monkeypatch.setattr(builder, "sha256_of", lambda url: hashed.append(url) or sha256_of(url))
    lines(home / "in/a.jsonl", ["new", *(f"text {i} " * 9 for i in range(1, 80))])
    build(home)
    assert not hashed
    (home / "store/manifest.json").unlink()
    assert build(home).parts == report.parts == len(hashed)
