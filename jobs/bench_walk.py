"""`python -m jobs.bench_walk`: what dealing documents to rows costs, by documents and by rows.

The figures of infra/SCALE.md. CPU seconds of this process, so that a busy machine does not matter
much; memory as Python allocates it (tracemalloc), the mapped index not counted.
"""

import gc
import json
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from jobs.entry import Job, Outcome, run
from jobs.visible import echo
from pipeline.layout import Layout
from pipeline.lengths import SplitLengths
from pipeline.rows import Walk
from pipeline.rows_state import RowsState, initial_state
from pipeline.store import read_index, write_index

SEGMENT = 512
TRACED = 20_000  # documents dealt while memory is traced
MEAN = 1000  # tokens of a document


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement.

    Attributes:
        documents: Of the store, a hundredth of them held out.
        rows: B.
        open_s: CPU seconds to count the split, once a process.
        kept_bytes: What stays in memory of that.
        dealt: Documents dealt in the measurement of time.
        us_a_document: CPU microseconds for each of them, the median of the repeats.
        lowest: The least of the repeats.
        highest: The most.
        peak_bytes: Most memory in use while a walk begins and deals some 20,000 documents.
        state_bytes: The state as JSON.
    """

    documents: int
    rows: int
    open_s: float
    kept_bytes: int
    dealt: int
    us_a_document: float
    lowest: float
    highest: float
    peak_bytes: int
    state_bytes: int


@click.command("bench_walk", cls=Job)
@click.option("--documents", default="100000,1000000,10000000", help="Sizes of stores.")
@click.option("--rows", default="64,1000,10000", help="Numbers of rows.")
@click.option("--deal", default=100_000, help="Documents dealt in a measurement.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, help="Of each. 5")
@click.option("--shuffle", type=click.Choice(["global", "block", "none"]), default="global")
def command(documents: str, rows: str, *, deal: int, repeats: int, shuffle: Any) -> Outcome:
    """Measure the walk over stores and rows of several sizes."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="longrow-bench-") as folder:
        for count in _numbers(documents):
            path = Path(folder) / "index.arrow"
            path.write_bytes(_index(count))
            for number in _numbers(rows):
                layout = Layout(rows=number, segment=SEGMENT, shuffle=shuffle)
                figures.append(measure(str(path), count, layout, deal=deal, repeats=repeats))
                echo(f"measured: {figures[-1]}", err=True)
    echo(in_words(figures))
    return Outcome(
        facts={
            "bench": "walk",
            "shuffle": shuffle,
            "repeats": repeats,
            "figures": [{name: getattr(f, name) for name in Figure.__slots__} for f in figures],
        }
    )


def measure(index: str, count: int, layout: Layout, *, deal: int, repeats: int) -> Figure:
    """Deal about `deal` documents, several times, each time further on in the corpus."""
    began = time.process_time()
    source = _open(index)
    open_s = time.process_time() - began
    kept = _traced(lambda: _open(index))[0]
    state = initial_state(layout)
    steps = max(1, deal * (MEAN + 1) // (layout.rows * SEGMENT))
    times: list[float] = []
    dealt = 0
    for _ in range(repeats):
        walk, before = Walk(source, layout, state), _dealt(state, source.count)
        gc.collect()
        began = time.process_time()
        walk.skip(steps)
        seconds = time.process_time() - began
        state = walk.state()
        dealt = _dealt(state, source.count) - before
        times.append(seconds / dealt * 1e6)
    few = max(1, TRACED * (MEAN + 1) // (layout.rows * SEGMENT))  # tracing is slow
    peak = _traced(lambda: Walk(source, layout, state).skip(few))[1]
    return Figure(
        documents=count,
        rows=layout.rows,
        open_s=open_s,
        kept_bytes=kept,
        dealt=dealt,
        us_a_document=float(np.median(times)),
        lowest=min(times),
        highest=max(times),
        peak_bytes=peak,
        state_bytes=len(json.dumps(state.to_json())),
    )


def in_words(figures: list[Figure]) -> str:
    """The figures as a table; each time beside that of the smallest store of as many rows."""
    first = {f.rows: f.us_a_document for f in reversed(figures)}
    head = "   documents     rows   us a document  (lowest, highest)  of smallest   peak MB"
    lines = [f"{head}  counts MB  open CPU s  state MB"]
    lines += [
        f"{f.documents:>12,} {f.rows:>8,}  {f.us_a_document:>14.2f}  "
        f"({f.lowest:>6.2f}, {f.highest:>7.2f})  {f.us_a_document / first[f.rows]:>11.2f}  "
        f"{f.peak_bytes / 1e6:>8.2f}  {f.kept_bytes / 1e6:>9.2f}  {f.open_s:>10.3f}  "
        f"{f.state_bytes / 1e6:>8.2f}"
        for f in figures
    ]
    return "\n".join(lines)


def _open(index: str) -> SplitLengths:
    lengths, splits = read_index(index)
    return SplitLengths(lengths, splits, 0)


def _dealt(state: RowsState, count: int) -> int:
    return state.sources[0].epoch * count + state.sources[0].next_index


def _traced(act: Any) -> tuple[int, int]:
    """Bytes that stay while the result of `act` lives, and the most in use on the way."""
    gc.collect()
    tracemalloc.start()
    try:
        result = act()
        kept, peak = tracemalloc.get_traced_memory()
        del result
        return kept, peak
    finally:
        tracemalloc.stop()


def _index(count: int) -> bytes:
    """An index of lengths as the web has them, log-normal, of MEAN tokens on average."""
    random = np.random.default_rng(0)
    num_tokens = random.lognormal(np.log(MEAN) - 0.5, 1.0, count).astype(np.int64)
    return write_index(num_tokens, (random.random(count) < 0.01).astype(np.uint8))


def _numbers(text: str) -> list[int]:
    return [int(float(word)) for word in text.split(",")]


if __name__ == "__main__":
    run(command)
