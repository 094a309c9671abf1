"""Length and split of a part's documents, without its tokens: few bytes of a file that may be far.

A part's record batches are not compressed: each column lies in buffers whose places the batch's
message says.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.arrow_blocks import UnknownMessageError, buffers_of_file
from pipeline.errors import DataError
from pipeline.manifest import PartEntry
from pipeline.ranges import Ranges

# Of the columns of part.py, in their order: each has a buffer that says what is missing, then
# one with its numbers; strings have ends and letters, lists have ends and a column of their own.
_NUM_BUFFERS, _SPLIT, _ENDS = 19, 8, 16


class LengthsAndSplits(NamedTuple):
    """What rows must know of documents."""

    num_tokens: npt.NDArray[np.int64]  # (documents,) EOD not counted
    split: npt.NDArray[np.uint8]  # (documents,)


def read_lengths(url: str, entry: PartEntry) -> LengthsAndSplits:
    """Those of a part that has been committed.

    Raises:
        DataError: It is not the part that `entry` says.
    """
    source = Ranges(url, entry.size_bytes)
    lengths, splits = [np.zeros(0, np.int64)], [np.zeros(0, np.uint8)]
    try:
        for rows, buffers in buffers_of_file(source):
            if len(buffers) != _NUM_BUFFERS:
                raise _other(url, f"a batch has {len(buffers)} buffers")
            ends = source.read_at(8 * (rows + 1), buffers[_ENDS])
            lengths.append(np.diff(np.frombuffer(ends, "<i8")) - 1)
            splits.append(np.frombuffer(source.read_at(rows, buffers[_SPLIT]), np.uint8))
    except UnknownMessageError as error:
        raise _other(url, str(error)) from error
    except FileNotFoundError as error:
        raise _other(url, "there is no file") from error
    found = LengthsAndSplits(np.concatenate(lengths), np.concatenate(splits))
    documents, tokens = len(found.num_tokens), int(found.num_tokens.sum())
    if (documents, tokens) != (entry.documents, entry.tokens):
        raise _other(url, f"{documents:,} documents of {tokens:,} tokens")
    return found


def _other(url: str, found: str) -> DataError:
    return DataError(
        f"{url} is not the part that its record names ({found}). Remove it and run `longrow build` "
        "again."
    )
