"""What travels from a server to a client: several steps of some rows, as compact as they come."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.batch import Batch, Tokens, batch_of
from pipeline.lengths import Int64s
from pipeline.rows import Reading, Table
from pipeline.rows_state import RowsState, SourceState


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """S steps of rows [lo, hi): few arrays, however many steps.

    Attributes:
        step: The first step.
        rows: [lo, hi); R = hi - lo.
        eod: The end-of-document id.
        tokens: (S, R, L) inputs.
        last: (S, R) the target of the last column; the other targets are the inputs that follow.
        pieces: Of all steps, one after the other.
        pieces_end: (S,) where each step's pieces end.
        dealt: Documents dealt, to all rows, of all steps.
        dealt_end: (S,) where each step's end.
        sources: (S, sources, 3) epoch, next_index and tokens_dealt after each step.
        after: The state after the last step.
    """

    step: int
    rows: tuple[int, int]
    eod: int
    tokens: Tokens
    last: Tokens
    pieces: Table
    pieces_end: Int64s
    dealt: Table
    dealt_end: Int64s
    sources: npt.NDArray[np.int64]
    after: RowsState

    @property
    def steps(self) -> int:
        """S."""
        return len(self.tokens)

    def reading(self, index: int) -> Reading:
        """The reading of step `self.step + index`."""
        return Reading(
            step=self.step + index,
            rows=self.rows,
            pieces=_part(self.pieces, self.pieces_end, index),
            dealt=_part(self.dealt, self.dealt_end, index),
            sources=tuple(
                SourceState(epoch=epoch, next_index=next_index, tokens_dealt=tokens_dealt)
                for epoch, next_index, tokens_dealt in self.sources[index].tolist()
            ),
        )

    def batch(self, index: int) -> Batch:
        """The batch of step `self.step + index`, with no part of the block in it."""
        return batch_of(
            _part(self.pieces, self.pieces_end, index),
            self.tokens[index],
            self.last[index],
            step=self.step + index,
            rows=self.rows,
            eod=self.eod,
        )


def block_of(
    readings: list[Reading], tokens: Tokens, last: Tokens, *, eod: int, after: RowsState
) -> Block:
    """Pack readings, at least one, and their tokens, (S, R, L) and (S, R), into a block."""
    return Block(
        step=readings[0].step,
        rows=readings[0].rows,
        eod=eod,
        tokens=tokens,
        last=last,
        pieces=np.concatenate([reading.pieces for reading in readings]),
        pieces_end=np.cumsum([len(reading.pieces) for reading in readings]),
        dealt=np.concatenate([reading.dealt for reading in readings]),
        dealt_end=np.cumsum([len(reading.dealt) for reading in readings]),
        sources=np.array(
            [
                [[s.epoch, s.next_index, s.tokens_dealt] for s in reading.sources]
                for reading in readings
            ],
            dtype=np.int64,
        ),
        after=after,
    )


def _part(table: Table, end: Int64s, index: int) -> Table:
    return table[end[index - 1] if index else 0 : end[index]]
