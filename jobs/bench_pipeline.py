"""What the pipeline costs beside bare loops of the libraries below it, both in this process, now.

Times are CPU seconds of the process, so that other work on the machine weighs little, and ours and
the bare loop take turns, so that what weighs at all weighs on both.
"""

import heapq
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.build import build_store
from pipeline.corpus import Document, plan_tasks
from pipeline.encode import encode_documents, prepare_texts
from pipeline.files import read_bytes, write_whole
from pipeline.layout import Layout
from pipeline.part import Encoded, PartHead, dtype_for, writing_part
from pipeline.records import read_task
from pipeline.rows import advance
from pipeline.rows_state import initial_state
from pipeline.server import RowServer
from pipeline.settings import BuildSettings, TokenizerSettings
from pipeline.store import Store
from pipeline.tokenizer import Tokenizer, train_from_settings

STEPS = 256  # planned and served at a time
BLOCK = 16  # steps of a call


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One comparison.

    Attributes:
        name: Of the work.
        unit: Of the rates, a CPU second.
        ours: Rate of the pipeline, the median.
        bare: Rate of the bare loop, the median.
        ratio: Of the two, the median over the repeats.
        lowest: Ratio of the worst repeat; `highest` of the best.
        bare_loop: What it is compared with.
    """

    name: str
    unit: str
    ours: float
    bare: float
    ratio: float
    lowest: float
    highest: float
    bare_loop: str


def measure(
    inputs: Sequence[str],
    *,
    tokenizer: str = "",
    repeats: int = 5,
    layout: Layout | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Encode, write, read, plan and serve a corpus, each beside its bare loop.

    Args:
        inputs: The corpus; it has to fit into memory twice.
        tokenizer: File or URL; empty trains one on the corpus first.
        repeats: Of every measurement.
        layout: Of plan and serve.
        say: Told what is being measured.
    """
    layout = layout or Layout(rows=64, segment=512)
    with tempfile.TemporaryDirectory(prefix="longrow-bench-") as folder:
        plan = plan_tasks(inputs, task_bytes=BuildSettings().task_bytes)
        documents = [
            item
            for task in plan.tasks
            for item in read_task(task)
            if isinstance(item, Document) and item.text
        ]
        model = tokenizer or str(Path(folder, "bench.model"))
        if not tokenizer:
            say("training a tokenizer")
            settings = TokenizerSettings(vocab_size=4_096, sample_bytes=2_000_000)
            write_whole(model, train_from_settings((d.text for d in documents), settings))
        loaded = Tokenizer(read_bytes(model))
        found: list[Figure] = []

        def compare(*comparison: Any) -> None:
            say(comparison[0])
            found.append(_compare(*comparison, repeats=repeats))

        out = str(Path(folder, "store"))
        compare(*_encode(inputs, documents, loaded, model=model, folder=folder))
        build_store(inputs, tokenizer=model, out=out, settings=BuildSettings(max_bad="100%"))
        store = Store.open(out)
        compare(*_write(documents, loaded, folder=folder))
        compare(*_read(store, folder=folder))
        compare(*_plan(store, layout))
        compare(*_serve(store, layout))
    return [asdict(figure) for figure in found]


def _compare(
    name: str,
    unit: str,
    amount: float,
    ours: Callable[[], object],
    bare: Callable[[], object],
    bare_loop: str,
    *,
    repeats: int,
) -> Figure:
    ours()  # the first time is for the caches
    bare()
    pairs = [(_cpu_s(ours), _cpu_s(bare)) for _ in range(repeats)]
    ratios = [theirs / own for own, theirs in pairs]
    return Figure(
        name=name,
        unit=unit,
        ours=amount / statistics.median(own for own, _ in pairs),
        bare=amount / statistics.median(theirs for _, theirs in pairs),
        ratio=statistics.median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        bare_loop=bare_loop,
    )


def _cpu_s(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return max(time.process_time() - begin, 1e-9)


def _encode(
    inputs: Sequence[str],
    documents: list[Document],
    tokenizer: Tokenizer,
    *,
    model: str,
    folder: str,
) -> tuple[Any, ...]:
    texts = [document.text.encode() for document in documents]
    encode = tokenizer.bare_encoder()

    def ours() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as out:
            settings = BuildSettings(max_bad="100%")
            build_store(inputs, tokenizer=model, out=str(Path(out, "s")), settings=settings)

    def bare() -> None:
        for text in texts:
            encode(text)

    size = sum(map(len, texts)) / 1e6
    return "encode", "MB of text", size, ours, bare, "the encoder alone, texts in memory"


def _write(documents: list[Document], tokenizer: Tokenizer, *, folder: str) -> tuple[Any, ...]:
    texts = prepare_texts(documents, held_out=BuildSettings().held_out)
    rows = [r for found in encode_documents(texts, tokenizer, BuildSettings()) for r in found]
    dtype = dtype_for(tokenizer.vocab_size)
    head = PartHead(
        key="0" * 32,
        tokenizer=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        eod=tokenizer.eod,
        dtype=dtype,
    )
    sources = list(dict.fromkeys(row.source for row in rows))
    place = Path(folder, "flat")

    def ours() -> None:
        with writing_part(str(Path(folder, "part.arrow")), head, sources) as part:
            part.add(rows)
            part.close()

    def bare() -> None:
        _flat(rows, dtype).tofile(place)

    size = sum(len(row.tokens) for row in rows) / 1e6
    return "write", "M tokens", size, ours, bare, "numpy: concatenate, cast, tofile"


def _flat(rows: list[Encoded], dtype: str) -> npt.NDArray[Any]:
    return np.concatenate([row.tokens for row in rows]).astype(dtype)


def _read(store: Store, *, folder: str) -> tuple[Any, ...]:
    ids = np.random.default_rng(1).permutation(store.manifest.documents).tolist()
    flat = np.concatenate([store.read(i) for i in range(len(ids))])
    flat.tofile(Path(folder, "flat"))
    lengths = [len(store.read(i)) for i in range(len(ids))]
    ends = np.cumsum(lengths).tolist()
    mapped = np.memmap(Path(folder, "flat"), dtype=flat.dtype, mode="r")
    times = max(1, 50_000 // len(ids))

    def ours() -> None:
        for _ in range(times):
            for i in ids:
                store.read(i)

    def bare() -> None:
        for _ in range(times):
            for i in ids:
                mapped[ends[i] - lengths[i] : ends[i]]

    amount = times * len(ids) / 1e6
    return "read", "M documents", amount, ours, bare, "numpy: a slice of one mapped array"


def _plan(store: Store, layout: Layout) -> tuple[Any, ...]:
    lengths = store.by_length("train")
    counts = store.num_tokens("train").tolist()

    def ours() -> None:
        advance(lengths, layout, initial_state(layout), STEPS)

    def bare() -> None:
        heap = [(0, row) for row in range(layout.rows)]
        order = np.random.default_rng(layout.seed).permutation(len(counts)).tolist()
        at = 0
        while heap[0][0] < STEPS * layout.segment:
            size, row = heap[0]
            heapq.heapreplace(heap, (size + counts[order[at % len(order)]] + 1, row))
            at += 1

    return "plan", "steps", STEPS, ours, bare, "heapq alone, order in memory, no state"


def _serve(store: Store, layout: Layout) -> tuple[Any, ...]:
    server = RowServer(store, layout)
    flat = np.concatenate([store.read(i) for i in store.doc_ids("train").tolist()])
    width = layout.segment
    starts = (
        np.random.default_rng(1)
        .integers(0, max(len(flat) - width, 1), (STEPS, layout.rows))
        .tolist()
    )

    def ours() -> None:
        state, step = server.initial_state(), 0
        while step < STEPS:
            block = server.read(state, BLOCK, (0, layout.rows))
            state = block.after
            step = state.step

    def bare() -> None:
        for row_starts in starts:
            batch = np.empty((len(row_starts), width), flat.dtype)
            for row, start in enumerate(row_starts):
                piece = flat[start : start + width]
                batch[row, : len(piece)] = piece

    return "serve", "steps", STEPS, ours, bare, "numpy: copies of slices, no documents, no state"
