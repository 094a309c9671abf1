"""Other rows, or another segment, in the middle of a run: nothing is lost or counted twice.

The documents that the old rows are in the middle of are read again from their start, before all
others; what was read to its end is not. docs/formats.md says it exactly (1.6).
"""

from dataclasses import dataclass

import numpy as np

from pipeline.layout import Layout, check_sources
from pipeline.lengths import Mixed, Source, mixed
from pipeline.rows_state import Restart, RowsState, initial_state, row_lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharded:
    """Rows dealt anew.

    Attributes:
        state: Of the new rows: as many steps done, nothing dealt to them yet.
        again: doc_id of the documents that are read again from their start.
        tokens: Inputs of them that were read before.
    """

    state: RowsState
    again: tuple[int, ...]
    tokens: int

    def in_words(self, old: Layout, new: Layout) -> str:
        """What happens, for a person."""
        said = ", ".join(map(str, self.again[:5])) + (", ..." if len(self.again) > 5 else "")
        return (
            f"The rows are dealt anew from step {self.state.step} on: {old.rows} rows of "
            f"{old.segment} tokens become {new.rows} of {new.segment}. {len(self.again):,} "
            f"documents in progress are read again from their start, {self.tokens:,} tokens of "
            f"them for the second time ({said or 'none'}). Memory begins empty."
        )


def reshard(documents: Source | Mixed, state: RowsState, *, old: Layout, new: Layout) -> Resharded:
    """Leave the rows of `old` at `state` and begin those of `new`.

    Raises:
        RowsError: The state is not of the old rows.
        DataError: It is not of these documents, or they do not fill the new rows.
    """
    mixture = mixed(documents)
    check_sources(new.rows, mixture)
    num_tokens = row_lengths(state, mixture, old)
    reached = (state.step - state.first_step) * old.segment
    rows = np.flatnonzero((num_tokens >= 0) & (state.began + num_tokens + 1 > reached))
    doc_id, epoch = state.doc_id[rows].tolist(), state.epoch[rows].tolist()
    pending = (
        *zip(doc_id, epoch, strict=True),
        *(state.restart.pending if state.restart else ()),
    )
    to_come = mixture.num_tokens_of(np.array([one for one, _ in pending], dtype=np.int64))
    dealt = sum(source.tokens_dealt for source in state.sources)
    empty = initial_state(new, len(mixture.sources))
    restart = Restart(
        step=state.step,
        tokens_dealt=dealt - int(new.taken(to_come).sum()),
        pending=pending,
    )
    return Resharded(
        state=RowsState(
            step=state.step,
            sources=state.sources,
            doc_id=empty.doc_id,
            epoch=empty.epoch,
            began=empty.began,
            restart=restart,
        ),
        again=tuple(doc_id),
        tokens=int((reached - state.began[rows]).sum()),
    )
