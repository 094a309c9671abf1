"""Parquet and Arrow: every row once, in stretches, and what is wrong with one is named."""

import hashlib
import io
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import reasons
from pipeline.corpus import Document, Plan, Reject, SourceOptions, plan_tasks
from pipeline.errors import DataError
from pipeline.records import hold, read_task

TEXTS = [f"text {i} \r\n\u2028 \x00 é" * (i % 7) for i in range(60)]
KINDS = ["parquet", "arrow", "arrow stream"]
ROOT = Path(__file__).parents[2]
_READ = """
import json, sys
from pathlib import Path
from tests.unit.test_tables import Reject, plan, read, texts
items = read(plan(Path(sys.argv[1])))
bad = [(item.record, item.reason) for item in items if isinstance(item, Reject)]
print(json.dumps([texts(items), bad]))
"""


def packed(kind: str, table: pa.Table, *, rows: int = 8, compression: str = "zstd") -> bytes:
    out = io.BytesIO()
    if kind == "parquet":
        pq.write_table(
            table, out, row_group_size=rows, compression=compression, write_page_checksum=True
        )
        return out.getvalue()
    new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with new(out, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=rows)
    return out.getvalue()


def table(**columns: Any) -> pa.Table:
    return pa.table({"other": list(range(len(TEXTS))), "text": TEXTS} | columns)


def plan(path: Path, task_bytes: int = 1 << 20, **options: Any) -> Plan:
    return plan_tasks([str(path)], task_bytes=task_bytes, options=SourceOptions(**options))


def read(made: Plan, limit: int = 1 << 20) -> list[Document | Reject]:
    return [i for task in made.tasks for i in read_task(task, held=hold(task, limit=limit))]


def texts(items: list[Document | Reject]) -> list[str]:
    return [item.text for item in items if isinstance(item, Document)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a.parquet", "a.dat", "a.arrow", "a"])
def test_a_table_is_known_by_its_bytes_and_every_row_is_read(
    tmp_path: Path, kind: str, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(packed(kind, table(id=[f"d{i}" for i in range(60)])))
    items = read(plan(path))
    assert texts(items) == TEXTS
    assert [i.uid for i in items if isinstance(i, Document)] == [f"d{i}" for i in range(60)]
    assert [i.record for i in items] == list(range(60))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_table_is_cut_between_its_groups_and_gives_the_same_rows(
    tmp_path: Path, kind: str, limit: int
) -> None:
    path = tmp_path / "a"
    path.write_bytes(packed(kind, table()))
    whole = plan(path)
    cut = plan(path, task_bytes=path.stat().st_size // 5)
    assert len(whole.tasks) == 1
    assert len(cut.tasks) >= 3
    assert read(cut, limit) == read(whole, limit)
    assert cut.num_bytes == whole.num_bytes == path.stat().st_size


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_may_lie_deeper_or_be_of_any_kind_of_text(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    nested = pa.array([{"text": text, "n": 1} for text in TEXTS])
    whole_numbers = list(range(60))
    path.write_bytes(packed(kind, pa.table({"deep": nested, "id": whole_numbers})))
    items = read(plan(path, text_key="deep.text"))
    assert texts(items) == TEXTS
    assert [i.uid for i in items if isinstance(i, Document)][:3] == ["0", "1", "2"]
    for type_ in (pa.large_string(), pa.binary(), pa.large_binary()):
        raw = pa.array([text.encode() for text in TEXTS]).cast(type_)
        path.write_bytes(packed(kind, pa.table({"a.b": raw})))
        assert texts(read(plan(path, text_key="a.b"))) == TEXTS
    path.write_bytes(packed(kind, pa.table({"text": pa.array(TEXTS).dictionary_encode()})))
    assert texts(read(plan(path))) == TEXTS


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_row_is_named_and_its_neighbours_are_kept(tmp_path: Path, kind: str) -> None:
    raw: list[bytes | None] = [text.encode() for text in TEXTS]
    raw[3], raw[20], raw[41] = None, b"good \xe9 bad", b"x" * 500
    path = tmp_path / "a"
    path.write_bytes(packed(kind, pa.table({"text": raw})))
    items = read(plan(path, max_record_bytes=300))
    bad = [item for item in items if isinstance(item, Reject)]
    assert [(b.record, b.reason, b.place) for b in bad] == [
        (3, reasons.NO_TEXT, "a, row 3"),
        (20, reasons.NOT_UTF8, "a, row 20"),
        (41, reasons.TOO_LARGE, "a, row 41"),
    ]
    assert texts(items) == [text for i, text in enumerate(TEXTS) if i not in (3, 20, 41)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_the_column_is_refused_before_the_build(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(packed(kind, pa.table({"body": TEXTS, "n": list(range(60))})))
    with pytest.raises(DataError, match=r"no column 'text'; it has body, n\..*--text-key"):
        plan(path)
    with pytest.raises(DataError, match=r"'n' of .* is of type int64"):
        plan(path, text_key="n")


@pytest.mark.parametrize("kind", KINDS)
def test_two_columns_of_one_name_are_refused_for_texts_and_no_ids(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "a"
    names, columns = ["text", "id", "id"], [pa.array(TEXTS)] * 3
    path.write_bytes(packed(kind, pa.Table.from_arrays(columns, names=names)))
    items = read(plan(path))
    assert texts(items) == TEXTS
    assert [item.uid for item in items if isinstance(item, Document)][:2] == ["a:0", "a:1"]
    path.write_bytes(packed(kind, pa.Table.from_arrays(columns[:2], names=["text", "text"])))
    with pytest.raises(DataError, match=r"a has 2 columns 'text', and one was wanted.*--text-key"):
        plan(path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a"])
def test_two_columns_of_texts_in_a_csv_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"text\tid\ttext\na\tb\tc\n")
    with pytest.raises(DataError, match=r"names 2 columns 'text' in its first line"):
        plan(path)


def test_a_file_that_is_a_bom_and_no_more_holds_no_bad_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for data in (b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b""):
        path.write_bytes(data)
        assert read(plan(path)) == []


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_damaged_row_group_costs_its_own_rows_and_no_others(
    tmp_path: Path, compression: str
) -> None:
    data = bytearray(packed("parquet", table(), compression=compression))
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    chunk = pq.ParquetFile(path).metadata.row_group(2).column(1)
    data[chunk.dictionary_page_offset + chunk.total_compressed_size // 2] ^= 0x55
    path.write_bytes(data)
    items = read(plan(path))
    bad = [item for item in items if isinstance(item, Reject)]
    assert [(b.record, b.reason) for b in bad] == [(16, reasons.DAMAGED)]
    assert texts(items) == TEXTS[:16] + TEXTS[24:]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_damaged_batch_costs_its_own_rows_and_no_others(tmp_path: Path, kind: str) -> None:
    letters = [f"{i} {hashlib.sha256(b'%d' % i).hexdigest() * 9}" for i in range(60)]
    data = bytearray(packed(kind, pa.table({"text": letters})))
    frames = [i for i in range(len(data)) if data[i : i + 4] == b"\x28\xb5\x2f\xfd"]  # of zstd
    data[frames[5]] ^= 0x55  # offsets and letters of a batch are a frame each
    path = tmp_path / "a"
    path.write_bytes(data)
    items = read(plan(path))
    bad = [item for item in items if isinstance(item, Reject)]
    assert [(b.record, b.reason) for b in bad] == [(16, reasons.DAMAGED)]
    assert texts(items) == letters[:16] + letters[24:]


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize(
    "wrong", [(0, 3, 500_000_000), (0, 900_000_000, 6), (0, 3, -5)], ids=["end", "middle", "back"]
)
def test_a_text_that_is_said_to_lie_outside_its_batch_is_damage(
    tmp_path: Path, kind: str, wrong: tuple[int, ...]
) -> None:
    column = [*TEXTS[1:3], "abc", "def", *TEXTS[1:3]]
    data = packed(kind, pa.table({"text": column}), rows=2, compression="none")
    path = tmp_path / "a"
    path.write_bytes(data.replace(struct.pack("<3i", 0, 3, 6), struct.pack("<3i", *wrong)))
    # In a process of its own: Arrow would read there, and die.
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(path)], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [TEXTS[1:3] * 2, [[2, reasons.DAMAGED]]]


@pytest.mark.parametrize("wrong", [b"\x09\0\0\0", b"\xff\xff\xff\xff"])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_word_that_is_not_in_the_dictionary_is_damage(
    tmp_path: Path, kind: str, wrong: bytes
) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1, 0, 1], pa.int32()), ["a", "b"])
    data = packed(kind, pa.table({"text": column}), compression="none")
    numbers = struct.pack("<5i", 1, 0, 1, 0, 1)
    assert data.count(numbers) == 1
    path = tmp_path / "a"
    path.write_bytes(data.replace(numbers, numbers[:16] + wrong))
    (reject,) = read(plan(path))
    assert isinstance(reject, Reject)
    assert reject.reason == reasons.DAMAGED


@pytest.mark.parametrize("rows", [0, 3])
def test_a_stream_with_the_high_byte_first_is_read_as_any_other(tmp_path: Path, rows: int) -> None:
    words = ["abc", "de", "f"][:rows]
    ends = [0, 3, 5, 6][: rows + 1]
    column = pa.array(words, pa.string())
    data = bytearray(packed("arrow stream", pa.table({"text": column}), compression="none"))
    little, big = (struct.pack(f"{order}{len(ends)}i", *ends) for order in "<>")
    assert not rows or data.count(little) == 1
    path = tmp_path / "a"
    path.write_bytes(high_byte_first(data).replace(little, big) if rows else high_byte_first(data))
    assert texts(read(plan(path))) == words


def high_byte_first(stream: bytearray) -> bytearray:
    """The stream, saying so of its numbers: in its schema, as Arrow's Message.fbs has it."""
    (root,) = struct.unpack_from("<I", stream, 8)

    def entry(table: int, field: int) -> int:
        return table - struct.unpack_from("<i", stream, table)[0] + 4 + 2 * field

    def below(table: int, field: int) -> int:
        place = table + struct.unpack_from("<H", stream, entry(table, field))[0]
        return place + struct.unpack_from("<I", stream, place)[0]

    schema = below(8 + root, 2)
    # Little is left out, and any other number is big: that of another field will do.
    struct.pack_into("<H", stream, entry(schema, 0), *stream[entry(schema, 1) :][:1])
    return stream


@pytest.mark.parametrize("kind", KINDS[1:])
def test_each_compressed_batch_is_unpacked_once_however_many_tasks_there_are(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(packed(kind, table()))
    unpacked: list[Any] = []
    open_file, open_stream = pa.ipc.open_file, pa.ipc.open_stream
    read_record_batch = pa.ipc.read_record_batch

    class Counted:
        """A reader whose batches are counted."""

        def __init__(self, reader: Any) -> None:
            self._reader = reader

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reader, name)

        def __iter__(self) -> Any:
            return map(self._count, self._reader)

        def get_batch(self, index: int) -> Any:
            return self._count(self._reader.get_batch(index))

        def _count(self, batch: Any) -> Any:
            unpacked.append(batch)
            return batch

    def counted_message(message: Any, schema: Any) -> Any:
        unpacked.append(message)
        return read_record_batch(message, schema)

    monkeypatch.setattr(pa.ipc, "open_file", lambda source: Counted(open_file(source)))
    monkeypatch.setattr(pa.ipc, "open_stream", lambda source: Counted(open_stream(source)))
    monkeypatch.setattr(pa.ipc, "read_record_batch", counted_message)
    made = plan(path, task_bytes=1)
    assert (len(made.tasks), len(unpacked)) == (8, 0)
    assert texts(read(made)) == TEXTS
    assert len(unpacked) == 8


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_table_that_is_cut_short_is_a_damaged_archive(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(packed(kind, table())[:-30])
    (item,) = read(plan(path))
    assert isinstance(item, Reject)
    assert item.reason == reasons.DAMAGED


def test_the_identity_of_a_stretch_hangs_on_its_rows_and_their_place(tmp_path: Path) -> None:
    def identity(rows: pa.Table) -> tuple[str, ...]:
        path = tmp_path / hashlib.sha256(str(rows).encode()).hexdigest()
        path.write_bytes(packed("arrow", rows))
        made = plan(path, task_bytes=path.stat().st_size // 3)
        return tuple(i for task in made.tasks for i in hold(task).identity)

    whole = identity(pa.table({"text": ["ab", "c"] * 30}))
    assert len(whole) > 2
    assert identity(pa.table({"text": ["a", "bc"] * 30})) != whole
    assert len(set(whole)) == len(whole)  # equal rows elsewhere in the file are others
    missing: list[str | None] = ["ab", "c"] * 30
    missing[0] = None
    assert identity(pa.table({"text": missing})) != identity(pa.table({"text": ["", *missing[1:]]}))
