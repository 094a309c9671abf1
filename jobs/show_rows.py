"""`longrow show ... --step`: which document each row reads around a step, as a drawing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.visible import echo
from pipeline.anchors import Anchor, at
from pipeline.errors import DataError
from pipeline.growing import GrowingStore
from pipeline.layout import Layout
from pipeline.lengths import Mixed, Source
from pipeline.rows import Reading, Table, Walk
from pipeline.store import Store

CELLS = 8  # characters a step is drawn with
SHOWN = 40  # rows
FILLS = "─═"  # documents that follow each other in a row look different
PAD = "·"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps that follow each other in the same rows."""

    layout: Layout
    readings: list[Reading]

    @property
    def first(self) -> int:
        """From 1."""
        return self.readings[0].step + 1

    @property
    def last(self) -> int:
        return self.readings[-1].step + 1


def show_rows(
    store: Store | GrowingStore,
    anchors: Sequence[Anchor],
    *,
    step: int,
    around: int,
    newest: int | None = None,
) -> dict[str, Any]:
    """Print and draw what the rows read around a step.

    Args:
        store: The documents.
        anchors: A state of the rows at or before it; and one wherever other rows were dealt.
        step: From 1, as the lines of metrics.jsonl count: the step that made `step` steps done.
        around: Steps drawn on either side of it.
        newest: The last step of a run; those after it are marked. None: of no run.

    Returns:
        JSON types: for each row the stretches of documents that it reads at the step.
    """
    stretches = walked(store.by_length("train"), anchors, step=step, around=around)
    found = next((one for one in stretches if one.first <= step <= one.last), None)
    if found is None:
        raise DataError(
            f"Step {step} cannot be shown: the anchor where its rows began is damaged. The first "
            f"step after it that is known is {stretches[-1].first}."
        )
    layout, here = found.layout, found.readings[step - found.first]
    facts = {
        "store": store.url,
        "rows": layout.rows,
        "segment": layout.segment,
        "seed": layout.seed,
        "shuffle": layout.shuffle,
        "boundary": layout.boundary,
        "step": step,
        "newest_step": newest,
        "drawn": [
            {
                "first_step": one.first,
                "last_step": one.last,
                "rows": one.layout.rows,
                "segment": one.layout.segment,
            }
            for one in stretches
        ],
        "sources": [
            {
                "epoch": source.epoch,
                "next_index": source.next_index,
                "tokens_dealt": source.tokens_dealt,
            }
            for source in here.sources
        ],
        "reads": [_stretch(store, piece) for piece in _table(here.pieces)],
    }
    echo(_head(facts))
    for number, one in enumerate(stretches):
        if number:
            echo(
                f"\nfrom step {one.first:,} on the rows are dealt anew: {one.layout.rows} rows of "
                f"{one.layout.segment} tokens"
            )
        drawing = draw(
            one.readings,
            rows=one.layout.rows,
            segment=one.layout.segment,
            step=step,
            newest=newest,
        )
        echo("\n".join(drawing))
    echo("")
    echo("\n".join(_list(facts["reads"], layout.rows)))
    return facts


def walked(
    lengths: Source | Mixed, anchors: Sequence[Anchor], *, step: int, around: int
) -> list[Stretch]:
    """What was read around a step, from each anchor to where the rows were dealt anew.

    Args:
        lengths: The documents.
        anchors: As of `show_rows`.
        step: From 1.
        around: Steps on either side of it.
    """
    stops = [*(anchor.state.first_step for anchor in anchors[1:]), step + around]
    found: list[Stretch] = []
    for anchor, stop in zip(anchors, stops, strict=True):
        first = max(0, step - 1 - around, anchor.state.step)
        if first < stop:
            walk = Walk(lengths, anchor.layout, at(anchor, lengths, first).state)
            readings = [walk.next_reading() for _ in range(stop - first)]
            found.append(Stretch(layout=anchor.layout, readings=readings))
    return found


def draw(
    readings: list[Reading], *, rows: int, segment: int, step: int, newest: int | None = None
) -> list[str]:
    """A line for each row: `|` where a document begins, its number, and a bar to its end.

    Args:
        readings: Of steps that follow each other.
        rows: B.
        segment: L.
        step: The step to point at, from 1.
        newest: The last step that was taken; those after it are to come.
    """
    shown = min(rows, SHOWN)
    width = len(str(rows - 1))
    ruler = "".join(f"{reading.step + 1:<{CELLS}}" for reading in readings)
    marks = "".join(_mark(reading.step + 1, step, newest) for reading in readings)
    lines = [f"{'step':>{width + 4}}  {ruler}".rstrip()]
    if marks.strip():
        lines.append(f"{'':>{width + 4}}  {marks}".rstrip())
    for row in range(shown):
        runs = _runs(readings, row, segment)
        lines.append(f"row {row:>{width}}  {_line(runs, len(readings) * CELLS)}")
    if rows > shown:
        lines.append(f"and {rows - shown:,} rows more")
    return lines


def _mark(number: int, step: int, newest: int | None) -> str:
    """What stands under a step's number."""
    if number == step:
        return "▼" * CELLS
    return f"{'to come' if newest is not None and number > newest else '':<{CELLS}}"


@dataclass(frozen=True, slots=True)
class _Run:
    """A document, or pads, in a row: from a character on to where the next one begins."""

    begin: int
    doc_id: int
    starts: bool  # at offset 0


def _runs(readings: list[Reading], row: int, segment: int) -> list[_Run]:
    """What a row reads, in order; a document that goes on over segments is one."""
    runs: list[_Run] = []
    for number, reading in enumerate(readings):
        for piece in _table(reading.pieces[reading.pieces["row"] == row]):
            starts = piece["offset"] == 0 and piece["doc_id"] >= 0
            if starts or not runs or piece["doc_id"] != runs[-1].doc_id:
                begin = number * CELLS + piece["column"] * CELLS // segment
                runs.append(_Run(begin, piece["doc_id"], starts))
    return runs


def _line(runs: list[_Run], width: int) -> str:
    """A row as text."""
    line, fill = [" "] * width, 0
    for run, end in zip(runs, [*(run.begin for run in runs[1:]), width], strict=True):
        room = end - run.begin
        if run.doc_id < 0:
            line[run.begin : end] = PAD * room
            continue
        fill = 1 - fill
        label = f"| {run.doc_id}" if run.starts else f"{run.doc_id}"
        label = label if len(label) < room else "|" * run.starts
        line[run.begin : end] = (label + FILLS[fill] * room)[:room]
    return "".join(line)


def _head(facts: dict[str, Any]) -> str:
    dealt = "; ".join(
        f"{source['tokens_dealt']:,} tokens dealt, in epoch {source['epoch']}"
        for source in facts["sources"]
    )
    newest = facts["newest_step"]
    coming = newest is not None and facts["step"] > newest
    return (
        (f"step {facts['step']:,} is to come: the run has done {newest:,}\n" if coming else "")
        + f"{facts['rows']} rows of {facts['segment']} tokens a step, seed {facts['seed']}, "
        f"shuffle {facts['shuffle']}, boundary {facts['boundary']}\n"
        f"after step {facts['step']:,}: {dealt}\n"
    )


def _list(reads: list[dict[str, Any]], rows: int) -> list[str]:
    lines = [f"{'row':>6}  {'document':>10}  {'offsets':>19}  {'of':>9}  {'epoch':>5}  id"]
    for one in (one for one in reads if one["row"] < SHOWN):
        if one["document"] is None:
            lines.append(f"{one['row']:>6}  {'pad':>10}  {one['inputs']:>19,}")
            continue
        offsets = f"{one['offset']:,} to {one['offset'] + one['inputs'] - 1:,}"
        lines.append(
            f"{one['row']:>6}  {one['document']:>10}  {offsets:>19}  {one['tokens'] + 1:>9,}  "
            f"{one['epoch']:>5}  {one['id']}"
        )
    if rows > SHOWN:
        lines.append(f"and {rows - SHOWN:,} rows more (all of them with --json)")
    return lines


def _stretch(store: Store | GrowingStore, piece: dict[str, int]) -> dict[str, Any]:
    """A piece in the words of a person."""
    known = piece["doc_id"] >= 0
    return {
        "row": piece["row"],
        "column": piece["column"],
        "inputs": piece["count"],
        "document": piece["doc_id"] if known else None,
        "id": store.uid(piece["doc_id"]) if known else None,
        "epoch": piece["epoch"],
        "offset": piece["offset"],
        "tokens": piece["num_tokens"],
    }


def _table(pieces: Table) -> list[dict[str, int]]:
    names = pieces.dtype.names or ()
    columns = (np.asarray(pieces[name]).tolist() for name in names)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
