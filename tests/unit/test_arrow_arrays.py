"""Numpy <-> Arrow without pandas, which pyarrow would import to ask a question."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.arrow_arrays import from_arrow, texts_to_arrow, to_arrow

ROOT = Path(__file__).parents[2]
KINDS = [pa.int64(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()]
_BUILD_AND_READ = """
import json, sys
from pathlib import Path
from pipeline.build import build_store
from pipeline.store import Store
folder = Path(sys.argv[1])
lines = [json.dumps({"text": f"text {i}", "id": "same"}) for i in range(9)]
(folder / "a.jsonl").write_text("\\n".join(lines))
(folder / "t").write_text('{"format": "longrow-bytes", "version": 1}')
build_store([str(folder / "a.jsonl")], tokenizer=str(folder / "t"), out=str(folder / "s"))
store = Store.open(str(folder / "s"))
assert store.read(3)[:4].tolist() == list(b"text")
print("pandas" in sys.modules, store.by_length("train").count)
"""


def test_a_store_is_built_and_read_without_pandas(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BUILD_AND_READ, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout[:5]) == (0, "False"), done.stderr


@given(
    kind=st.sampled_from(KINDS),
    numbers=st.lists(st.integers(0, 255)),
    begin=st.integers(0, 9),
    length=st.integers(0, 9),
)
def test_numbers_come_back_from_any_slice(
    kind: pa.DataType, numbers: list[int], begin: int, length: int
) -> None:
    column = to_arrow(numbers, kind)
    column.validate(full=True)
    assert column.equals(pa.array(numbers, kind))
    found: npt.NDArray[np.int64] = from_arrow(column[begin : begin + length])
    assert found.dtype == str(kind)
    assert found.tolist() == numbers[begin : begin + length]


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_strings_are_those_that_pyarrow_makes(texts: list[str]) -> None:
    column = texts_to_arrow(texts)
    column.validate(full=True)
    assert column.equals(pa.array(texts, pa.string()))


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        to_arrow([256], pa.uint8())
