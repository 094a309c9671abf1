"""Rows of record batches, read beside Arrow: as Arrow says, and a sentence for broken bytes."""

import io
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.arrow_blocks import UnknownMessageError, rows_of_file, rows_of_message


def written(rows: list[int], compression: str | None, *, new: Any = pa.ipc.new_file) -> bytes:
    out = io.BytesIO()
    schema = pa.schema([("text", pa.string()), ("n", pa.int64())], metadata={"a": "b"})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new(out, schema, options=options) as file:
        for count in rows:
            columns = [["x" * i for i in range(count)], list(range(count))]
            file.write_batch(pa.record_batch(columns, schema=schema))
    return out.getvalue()


ROWS = st.lists(st.integers(0, 40), max_size=9)
COMPRESSION = st.sampled_from([None, "lz4", "zstd"])


@given(rows=ROWS, compression=COMPRESSION)
def test_the_rows_of_each_batch_are_known_without_reading_it(
    rows: list[int], compression: str | None
) -> None:
    assert rows_of_file(pa.BufferReader(written(rows, compression))) == rows
    stream = pa.BufferReader(written(rows, compression, new=pa.ipc.new_stream))
    _, *messages = pa.ipc.MessageReader.open_stream(stream)
    assert [rows_of_message(message.metadata) for message in messages] == rows


@given(rows=ROWS, compression=COMPRESSION, data=st.data())
def test_broken_bytes_give_numbers_or_a_sentence(
    rows: list[int], compression: str | None, data: st.DataObject
) -> None:
    broken = bytearray(written(rows, compression))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(max(len(broken) - 400, 0), len(broken) - 1))
        broken[at] = data.draw(st.integers(0, 255))
    try:
        found = rows_of_file(pa.BufferReader(bytes(broken[: data.draw(st.integers(1, 10**4))])))
    except UnknownMessageError:
        return
    assert all(isinstance(count, int) for count in found)
