"""What the trainer gets of the rows of a rank at a step, and how it is made of what was served."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.rows import Table

NO_TARGET = -100
Tokens = npt.NDArray[np.uint16 | np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """R rows of one step. Where a row has run out (evaluation only) stands a pad.

    Attributes:
        step: The step.
        rows: [lo, hi) of the global batch; R = hi - lo.
        tokens: (R, L) uint16 or uint32; the beginning-of-document id at offset 0 and in pads.
        targets: (R, L) int32, each the next token of the same document or its end; -100 in pads.
        doc_id: (R, L) int64; -1 in pads.
        offset: (R, L) int64, inputs of its document before each input; 0 in pads.
        reset: (R,) bool, whether the offset at column 0 is 0.
        epoch: (R,) int64, of the document at column 0.
    """

    step: int
    rows: tuple[int, int]
    tokens: Tokens
    targets: npt.NDArray[np.int32]
    doc_id: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    reset: npt.NDArray[np.bool_]
    epoch: npt.NDArray[np.int64]


def batch_of(
    pieces: Table, tokens: Tokens, last: Tokens, *, step: int, rows: tuple[int, int], eod: int
) -> Batch:
    """Put a batch together.

    Args:
        pieces: (P,) of PIECE, by row and column.
        tokens: (R, L) inputs.
        last: (R,) the targets at the last column; of a pad, anything.
        step: The step.
        rows: [lo, hi).
        eod: The end-of-document id.
    """
    size = tokens.size
    start = (pieces["row"] - rows[0]) * tokens.shape[1] + pieces["column"]
    targets = np.empty(tokens.shape, dtype=np.int32)
    targets[:, :-1], targets[:, -1] = tokens[:, 1:], last
    # Where the next input of the row opens another document, this one has ended.
    targets.reshape(size)[start[pieces["column"] > 0] - 1] = eod
    doc_id = np.repeat(pieces["doc_id"], pieces["count"]).reshape(tokens.shape)
    offset = np.arange(size) + np.repeat(pieces["offset"] - start, pieces["count"])
    offset = offset.reshape(tokens.shape)
    if pieces["doc_id"].min() < 0:
        targets[doc_id < 0], offset[doc_id < 0] = NO_TARGET, 0
    return Batch(
        step=step,
        rows=rows,
        tokens=tokens.copy(),  # of its own: a batch must not hold a whole block in memory
        targets=targets,
        doc_id=doc_id,
        offset=offset,
        reset=offset[:, 0] == 0,
        epoch=pieces["epoch"][pieces["column"] == 0],
    )


def digest(batch: Batch) -> str:
    """The sha256 of every field of a batch, in hex: equal on every machine (docs/formats.md)."""
    sha = hashlib.sha256()
    for name in ("tokens", "targets", "doc_id", "offset", "reset", "epoch"):
        values = np.asarray(getattr(batch, name))
        sha.update(f"{name}{list(values.shape)}\n".encode())
        sha.update(np.ascontiguousarray(values, dtype="<i8").tobytes())
    sha.update(f"step {batch.step} rows {batch.rows[0]} {batch.rows[1]}\n".encode())
    return sha.hexdigest()
