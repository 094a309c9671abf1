"""`longrow show ... --step`: which document each row reads around a step, as a drawing."""

from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from pipeline.anchors import Anchor, at
from pipeline.growing import GrowingStore
from pipeline.rows import Reading, Table, Walk
from pipeline.store import Store

CELLS = 8  # characters a step is drawn with
SHOWN = 40  # rows
FILLS = "─═"  # documents that follow each other in a row look different
PAD = "·"


def show_rows(
    store: Store | GrowingStore, anchor: Anchor, *, step: int, around: int
) -> dict[str, Any]:
    """Print and draw what the rows read around a step.

    Args:
        store: The documents.
        anchor: A state of the rows at or before it.
        step: From 1, as the lines of metrics.jsonl count: the step that made `step` steps done.
        around: Steps drawn on either side of it.

    Returns:
        JSON types: for each row the stretches of documents that it reads at the step.
    """
    lengths, layout = store.by_length("train"), anchor.layout
    first = max(anchor.state.first_step, step - 1 - around, anchor.state.step)
    walk = Walk(lengths, layout, at(anchor, lengths, first).state)
    readings = [walk.next_reading() for _ in range(step + around - first)]
    here = readings[step - 1 - first]
    facts = {
        "store": store.url,
        "rows": layout.rows,
        "segment": layout.segment,
        "seed": layout.seed,
        "shuffle": layout.shuffle,
        "boundary": layout.boundary,
        "step": step,
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
    click.echo(_head(facts))
    click.echo("\n".join(draw(readings, rows=layout.rows, segment=layout.segment, step=step)))
    click.echo("")
    click.echo("\n".join(_list(facts["reads"], layout.rows)))
    return facts


def draw(readings: list[Reading], *, rows: int, segment: int, step: int) -> list[str]:
    """A line for each row: `|` where a document begins, its number, and a bar to its end.

    Args:
        readings: Of steps that follow each other.
        rows: B.
        segment: L.
        step: The step to point at, from 1.
    """
    shown = min(rows, SHOWN)
    width = len(str(rows - 1))
    ruler = "".join(f"{reading.step + 1:<{CELLS}}" for reading in readings)
    point = " " * (step - 1 - readings[0].step) * CELLS + "▼" * CELLS
    lines = [f"{'step':>{width + 4}}  {ruler.rstrip()}", f"{'':>{width + 4}}  {point}"]
    for row in range(shown):
        runs = _runs(readings, row, segment)
        lines.append(f"row {row:>{width}}  {_line(runs, len(readings) * CELLS)}")
    if rows > shown:
        lines.append(f"and {rows - shown:,} rows more")
    return lines


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
    return (
        f"{facts['rows']} rows of {facts['segment']} tokens a step, seed {facts['seed']}, shuffle "
        f"{facts['shuffle']}, boundary {facts['boundary']}\nafter step {facts['step']:,}: {dealt}\n"
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
