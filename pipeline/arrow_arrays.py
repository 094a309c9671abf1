"""Numpy's arrays and Python's strings -> Arrow's, and back, not copied where that can be.

`pa.array` and `to_numpy` ask whether they were given something of pandas, and import it to ask:
a quarter of a second and 50 MB in every process that writes or reads a part.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import DataError


def to_arrow(numbers: npt.ArrayLike, kind: pa.DataType) -> pa.Array:
    """Whole numbers, (n,), as Arrow has them; a numpy array of that kind is not copied."""
    array = np.ascontiguousarray(numbers, dtype=str(kind))
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])


def from_arrow(column: pa.Array) -> npt.NDArray[Any]:
    """(n,) whole numbers, none missing, a view."""
    dtype = np.dtype(str(column.type))
    if not len(column):
        return np.zeros(0, dtype)
    begin = column.offset * dtype.itemsize
    return np.frombuffer(column.buffers()[1], dtype, count=len(column), offset=begin)


def texts_to_arrow(texts: Sequence[str]) -> pa.Array:
    """Strings as Arrow has them.

    Raises:
        DataError: They come to more than the 2 GiB that one column of a batch can hold.
    """
    data = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int64)
    if ends[-1] >= 1 << 31:
        raise DataError(
            f"The ids of {len(texts):,} documents that stand together come to {ends[-1]:,} bytes, "
            "and a part holds 2 GiB of them. Name a shorter one with --id-key."
        )
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)
