"""What each step did, as metric lines; read one step late, so that no device is waited for."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.batch import Batch
from pipeline.rows_state import RowsState, SourceState
from trainer.counters import Counters
from trainer.group import Group
from trainer.step import StepResult


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """A step whose numbers are still on the device.

    Attributes:
        step: Steps done with it.
        result: What take_step gave.
        batch: What this rank read.
        rows: The state after it.
        targets: Real targets of all ranks.
        rate: Its learning rate.
        waited_s: Seconds this rank waited for the batch.
    """

    step: int
    result: StepResult
    batch: Batch
    rows: RowsState
    targets: int
    rate: float
    waited_s: float


class Ledger:
    """Turns steps into lines, on all ranks alike; `write` is called on rank 0 only.

    Attributes:
        counters: What the decisions of the loop read; up to the last step that was flushed.
        last_skipped: The last step whose update was skipped; 0 if none was.
    """

    def __init__(
        self,
        group: Group,
        counters: Counters,
        *,
        first_row: int,
        write: Callable[[dict[str, Any]], None],
        note: Callable[[str], None],
        usage: Callable[[float], dict[str, float]],
    ) -> None:
        """Begin with `counters`.

        Args:
            group: The ranks.
            counters: As far as the run has come.
            first_row: The global number of this rank's first row.
            write: Takes a line.
            note: Takes a sentence for a person.
            usage: Tells of a step's seconds what the step took.
        """
        self.counters = counters
        self.last_skipped = 0
        self._group, self._first_row = group, first_row
        self._write = write
        self._note = note
        self._usage = usage
        self._pending: tuple[Entry, Tensor, float] | None = None
        self._ended = time.perf_counter()

    def add(self, entry: Entry) -> None:
        """Take a step in; the one before it is read and written."""
        mine = torch.stack(
            [entry.result.loss, entry.result.usable.double(), _starts(entry, self._group)]
        )
        numbers = self._group.sum_(mine)
        self.flush()
        now = time.perf_counter()
        seconds, self._ended = now - self._ended, now
        self._pending = (entry, numbers, seconds)

    def flush(self) -> None:
        """Read and write the step that was taken in last, if that was not done yet."""
        if self._pending is None:
            return
        (entry, numbers, seconds), self._pending = self._pending, None
        asked = time.perf_counter()
        loss, usable, starts = numbers.tolist()
        applied = bool(entry.result.applied)
        norm_mean, norm_count = entry.result.seen.tolist()
        waited = time.perf_counter() - asked  # for a device that is still at this step
        seconds += waited
        self._ended += waited
        self.counters = replace(
            self.counters,
            skipped=self.counters.skipped + (not applied),
            skipped_in_row=0 if applied else self.counters.skipped_in_row + 1,
            targets=self.counters.targets + entry.targets,
            norm_mean=norm_mean,
            norm_count=int(norm_count),
        )
        if not applied:
            self.last_skipped = entry.step
            self._tell_skip(entry)
        if self._group.rank == 0:
            self._write(
                {
                    "kind": "step",
                    "step": entry.step,
                    "train/loss": loss / entry.targets,
                    "train/grad_norm": float(entry.result.norm),
                    "train/learning_rate": entry.rate,
                    "train/skipped_steps": self.counters.skipped,
                    "train/targets": self.counters.targets,
                    "train/usable_memory": usable / self._group.world_size,
                    "train/tokens_per_second": entry.targets / seconds,
                    "train/step_seconds": seconds,
                    "data/wait_seconds": entry.waited_s,
                    "data/epoch": int(entry.rows.epoch.max()),
                    "data/document_starts": int(starts),
                    "data/duplicate_rows": _duplicates(entry.rows),
                    **self._usage(seconds),
                    **by_source(entry.rows.sources),
                }
            )

    def restart_clock(self) -> None:
        """Leave what happens from the last step until now out of the next step's seconds."""
        self._ended = time.perf_counter()

    def _tell_skip(self, entry: Entry) -> None:
        here = json.dumps(documents_of(entry.batch, first_row=self._first_row))
        everywhere = [json.loads(told) for told in self._group.gather(here) if told is not None]
        documents = [one for part in everywhere for one in part]
        ids = sorted({doc for _, doc, _ in documents})
        if self._group.rank == 0:
            self._write(
                {
                    "kind": "skipped",
                    "step": entry.step,
                    "rows": [row for row, _, _ in documents],
                    "doc_ids": [doc for _, doc, _ in documents],
                    "offsets": [offset for _, _, offset in documents],
                }
            )
            norm, usual = float(entry.result.norm), self.counters.norm_mean
            why = "was not finite"
            if math.isfinite(norm):
                why = f"had a norm of {norm:.3g}, a spike over the usual {usual:.3g}"
            self._note(
                f"Step {entry.step}: the gradient {why}, the update was skipped. "
                f"Documents in the batch: {', '.join(map(str, ids))}."
            )


def documents_of(batch: Batch, *, first_row: int) -> list[tuple[int, int, int]]:
    """Which documents a batch reads, row by row: row, doc_id, and the offset it reads on from.

    Args:
        batch: Of one rank.
        first_row: The global number of its first row.
    """
    found: list[tuple[int, int, int]] = []
    for row, (doc_ids, offsets) in enumerate(zip(batch.doc_id, batch.offset, strict=True)):
        begins = np.flatnonzero(np.diff(doc_ids, prepend=-2) | (offsets == 0))
        found += [
            (first_row + row, int(doc_ids[at]), int(offsets[at]))
            for at in begins
            if doc_ids[at] >= 0
        ]
    return found


def _starts(entry: Entry, group: Group) -> Tensor:
    starts = int(np.count_nonzero((entry.batch.offset == 0) & (entry.batch.doc_id >= 0)))
    return torch.tensor(float(starts), dtype=torch.float64, device=group.device)


def _duplicates(rows: RowsState) -> int:
    return len(rows.doc_id) - len(np.unique(rows.doc_id))


def by_source(sources: Sequence[SourceState]) -> dict[str, float]:
    """Of a mixture: tokens dealt of each store, the epoch it is in, its share of all tokens."""
    if len(sources) == 1:
        return {}
    total = sum(source.tokens_dealt for source in sources)
    told: dict[str, float] = {}
    for number, source in enumerate(sources):
        told[f"data/source_{number}/tokens"] = source.tokens_dealt
        told[f"data/source_{number}/epoch"] = source.epoch
        told[f"data/source_{number}/share"] = source.tokens_dealt / total
    return told
