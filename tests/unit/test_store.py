"""A store says what is wrong with it, file by file, before anybody reads it."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline import part
from pipeline.build import build_store
from pipeline.errors import DataError
from pipeline.manifest import canonical
from pipeline.part import Encoded, Part, PartHead, dtype_for, writing_part
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer

TEXTS = [f"document {i} " * (i + 1) for i in range(30)]


def build(folder: Path, texts: list[str] = TEXTS, **settings: object) -> Path:
    folder.mkdir()
    (folder / "byte.json").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    lines = [json.dumps({"text": text, "id": f"d{i}"}) for i, text in enumerate(texts)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    build_store(
        [str(folder / "a.jsonl")],
        tokenizer=str(folder / "byte.json"),
        out=str(folder / "store"),
        settings=BuildSettings(**({"task_bytes": 1_000} | settings)),  # type: ignore[arg-type]
    )
    return folder / "store"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def arrows(store: Path) -> list[Path]:
    keys = [part["key"] for part in json.loads((store / "manifest.json").read_text())["parts"]]
    return [store / "parts" / f"{key}.arrow" for key in keys]


def edit(store: Path) -> None:
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["documents"] += 1
    (store / "manifest.json").write_bytes(canonical(manifest))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda s: (s / "manifest.json").unlink(), "build was not finished"),
    "torn manifest": (lambda s: (s / "manifest.json").write_text('{"form'), "no JSON manifest"),
    "deep manifest": (lambda s: (s / "manifest.json").write_text("[" * 100_000), "no JSON"),
    "old manifest": (lambda s: (s / "manifest.json").write_text('{"format": "x"}'), "format 'x'"),
    "edited manifest": (edit, "manifest.json was changed"),
    "missing part": (lambda s: arrows(s)[1].unlink(), r"\.arrow is missing"),
    "missing record": (lambda s: arrows(s)[1].with_suffix(".json").unlink(), "json, the record"),
    "cut part": (lambda s: arrows(s)[1].write_bytes(arrows(s)[1].read_bytes()[:-9]), "bytes, the"),
    "stray part": (lambda s: shutil.copy(arrows(s)[0], s / "parts/x.arrow"), "x.arrow is foreign"),
    "flipped index": (lambda s: flip(s / "index.arrow"), "index.arrow has the right size and the"),
    "flipped tokenizer": (lambda s: flip(s / "tokenizer.model"), "tokenizer.model has the right"),
    "missing tokenizer": (lambda s: (s / "tokenizer.model").unlink(), "model is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_that_a_look_can_see_is_refused_at_the_door(tmp_path: Path, damage: str) -> None:
    store = build(tmp_path / "a")
    harm, says = DAMAGE[damage]
    harm(store)
    with pytest.raises(DataError, match=says) as caught:
        Store.open(str(store))
    assert str(store) in str(caught.value)
    build_store(  # the way out that most messages name
        [str(tmp_path / "a/a.jsonl")],
        tokenizer=str(tmp_path / "a/byte.json"),
        out=str(store),
        settings=BuildSettings(task_bytes=1_000),
    ) if damage != "stray part" else (store / "parts/x.arrow").unlink()
    assert Store.open(str(store)).verify() == []


def test_a_folder_that_is_no_store_is_told_apart(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="it is no store"):
            Store.open(str(path))


def test_a_flipped_bit_anywhere_is_found_by_verify_and_named(tmp_path: Path) -> None:
    path = build(tmp_path / "a")
    assert Store.open(str(path)).verify() == []
    flipped = [arrows(path)[2], arrows(path)[0].with_suffix(".json")]
    for file in flipped:
        flip(file)
    found = Store.open(str(path)).verify()
    assert len(found) == 2
    assert all(any(str(file) in fault for fault in found) for file in flipped)


def test_parts_that_changed_places_are_found_when_they_are_read(tmp_path: Path) -> None:
    path = build(tmp_path / "a", ["same length"] * 2, task_bytes=36)
    one, two = arrows(path)
    data = one.read_bytes(), two.read_bytes()
    assert len(data[0]) == len(data[1])
    one.write_bytes(data[1])
    two.write_bytes(data[0])
    store = Store.open(str(path))
    with pytest.raises(DataError, match="is a foreign part: it holds task"):
        store.read(0)
    assert len(store.verify()) == 2


def test_a_part_of_another_tokenizer_is_refused_as_such(tmp_path: Path) -> None:
    path = build(tmp_path / "a")
    part = arrows(path)[0]
    before = Part(str(part))
    head = PartHead(
        key=before.head.key, tokenizer="f" * 64, vocab_size=258, eod=257, dtype="uint16"
    )
    with writing_part(str(part), head, ["a.jsonl"]) as writer:
        for row in range(before.num_documents):
            names = ("uid", "source", "record", "split", "num_bytes", "num_chars", "num_words")
            cells = {name: before.value(name, row) for name in names}
            writer.add([Encoded(**cells, tokens=before.tokens(row)[:-1])])
        writer.close()
    with pytest.raises(DataError, match="encoded with another tokenizer"):
        Store.open(str(path)).read(0)


def test_documents_are_views_and_every_number_leads_back_to_its_place(tmp_path: Path) -> None:
    store = Store.open(str(build(tmp_path / "a")))
    data = (tmp_path / "a/a.jsonl").read_bytes()
    assert len(store.manifest.parts) > 3
    for doc_id, text in enumerate(TEXTS):
        tokens = store.read(np.int64(doc_id))  # type: ignore[arg-type]
        assert not tokens.flags.owndata
        assert not tokens.flags.writeable
        assert bytes(tokens[:-1].astype(np.uint8)) == text.encode()
        source, record = store.origin(doc_id)
        assert source == "a.jsonl"
        assert json.loads(data[record:].split(b"\n")[0])["text"] == text
        assert store.uid(doc_id) == f"d{doc_id}"
    for wrong in (-1, len(TEXTS)):
        with pytest.raises(IndexError, match="holds documents 0 to 29"):
            store.read(wrong)


def test_a_view_outlives_its_store(tmp_path: Path) -> None:
    store = Store.open(str(build(tmp_path / "a")))
    tokens = store.read(29)
    del store
    assert bytes(tokens[:8].astype(np.uint8)) == b"document"


def test_opening_opens_no_part_and_holds_no_descriptor(tmp_path: Path) -> None:
    store = Store.open(str(build(tmp_path / "a")))
    assert not store._open
    before = len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0
    for doc_id in range(len(TEXTS)):
        store.read(doc_id)
    assert len(store._open) > 3
    after = len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0
    assert after == before


def test_a_store_may_lie_behind_a_url(tmp_path: Path) -> None:
    local = build(tmp_path / "a")
    build_store(
        [str(tmp_path / "a/a.jsonl")],
        tokenizer=str(tmp_path / "a/byte.json"),
        out="memory://longrow-store/s",
        settings=BuildSettings(task_bytes=1_000),
    )
    store = Store.open("memory://longrow-store/s")
    assert store.fingerprint == Store.open(str(local)).fingerprint
    assert store.verify() == []
    assert store.text(7) == TEXTS[7]


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32")]
)
def test_the_largest_id_fits_and_the_next_is_refused(
    tmp_path: Path, vocab_size: int, dtype: str
) -> None:
    assert dtype_for(vocab_size) == dtype
    head = PartHead(key="k", tokenizer="t", vocab_size=vocab_size, eod=2, dtype=dtype)

    def write(path: Path, *ids: int) -> None:
        with writing_part(str(path), head, ["s"]) as writer:
            for name, tokens in (("a", [1]), ("b", [3, *ids])):
                row = Encoded(
                    uid=name,
                    source="s",
                    record=ord(name),
                    split=0,
                    num_bytes=1,
                    num_chars=1,
                    num_words=1,
                    tokens=np.array(tokens, dtype=np.int32),
                )
                writer.add([row])
            writer.close()

    write(tmp_path / "good.arrow", vocab_size - 1)
    tokens = Part(str(tmp_path / "good.arrow")).tokens(1)
    assert (tokens.dtype, tokens.tolist()) == (dtype, [3, vocab_size - 1, 2])
    for wrong in (vocab_size, -1):
        with pytest.raises(DataError, match=f"s at byte 98: the tokenizer gave id {wrong:,}"):
            write(tmp_path / "bad.arrow", wrong)
        assert not (tmp_path / "bad.arrow").exists()


def test_a_flipped_bit_in_a_part_is_met_by_who_reads_it(tmp_path: Path) -> None:
    path = build(tmp_path / "a")
    flip(arrows(path)[1])
    store = Store.open(str(path))
    base = store.manifest.parts[0].documents
    assert store.text(0)  # of another part
    for _ in range(2):
        with pytest.raises(DataError, match=rf"{arrows(path)[1].name} has the right size"):
            store.read(base)


def test_batches_of_a_part_end_where_enough_tokens_have_come_however_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "BATCH_TOKENS", 20)
    head = PartHead(key="k", tokenizer="t", vocab_size=300, eod=2, dtype="uint16")
    texts = [np.arange(3, 3 + n, dtype=np.int32) for n in (4, 9, 4, 1, 50, 18, 19, 3, 3, 3, 3, 3)]
    rows = [Encoded("u", "s", i, 0, 1, 1, 1, ids) for i, ids in enumerate(texts)]
    written = set[bytes]()
    for at_once in (1, 2, 5, 12):
        path = tmp_path / f"{at_once}.arrow"
        with writing_part(str(path), head, ["s"]) as writer:
            for first in range(0, len(rows), at_once):
                writer.add(rows[first : first + at_once])
            writer.close()
        written.add(path.read_bytes())
        found = Part(str(path))
        assert [found.tokens(i).tolist() for i in range(12)] == [[*t.tolist(), 2] for t in texts]
    assert len(written) == 1
    _, batches = part.open_arrow(str(path))
    assert [batch.num_rows for batch in batches] == [3, 2, 2, 5]
