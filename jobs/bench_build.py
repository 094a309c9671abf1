"""The build by actors beside the bare encoder in as many processes: speed a core, and memory.

Both are measured in CPU seconds of the processes that work, with as many of them at once, and take
turns, so that other work on the machine weighs on both alike.
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from jobs.cluster import local_ray
from pipeline.build_actor import build_store_with_actors
from pipeline.corpus import Document, Task, plan_tasks
from pipeline.errors import DataError
from pipeline.files import read_bytes, write_whole
from pipeline.progress import BuildProgress, Seen
from pipeline.records import read_task, read_texts
from pipeline.sample import plan_sample
from pipeline.settings import BuildSettings, TokenizerSettings
from pipeline.tokenizer import Tokenizer, train_from_settings


def measure_build(
    inputs: Sequence[str],
    *,
    tokenizer: str = "",
    workers: int = 2,
    repeats: int = 3,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Build a corpus with actors, and encode its texts with the library alone, in turns.

    Args:
        inputs: The corpus.
        tokenizer: File or URL; empty trains one on a sample of the corpus first.
        workers: Actors, and processes of the bare encoder.
        repeats: Of both.
        say: Told what is being done.

    Returns:
        `ours` and `bare` in MB of text a CPU second (medians), their `ratio` (median of the
        turns, with `lowest` and `highest`), `peak_bytes` of each actor over all turns, MB of text
        a second of the clock.

    Raises:
        DataError: The corpus cannot be used, or an actor did not say what the build took it.
    """
    settings = BuildSettings(max_bad="100%", max_damaged=1 << 30)
    tasks = plan_tasks(inputs, task_bytes=settings.task_bytes, options=settings.options).tasks
    with tempfile.TemporaryDirectory(prefix="longrow-bench-") as folder:
        model = tokenizer or str(Path(folder, "bench.model"))
        if not tokenizer:
            say("training a tokenizer")
            wanted = TokenizerSettings(sample_bytes=2_000_000, vocab_size=4_096)
            sample = plan_sample(inputs, sample_bytes=wanted.sample_bytes, seed=wanted.seed)
            write_whole(model, train_from_settings(read_texts(sample.tasks), wanted))
        turns: list[tuple[float, float, float]] = []  # CPU of ours, of the bare loop, clock of ours
        peaks: dict[int, int] = {}
        text_bytes = 0
        for turn in range(repeats):
            say(f"building, turn {turn + 1}")
            last: list[Seen] = []

            def note(progress: BuildProgress, last: list[Seen] = last) -> None:
                last[:] = progress.builders

            with local_ray(num_cpus=workers):
                began_s = time.monotonic()
                report = build_store_with_actors(
                    inputs,
                    tokenizer=model,
                    out=str(Path(folder, f"store-{turn}")),
                    workers=workers,
                    settings=settings,
                    progress=note,
                )
                clock_s = time.monotonic() - began_s
            if len(last) < min(workers, len(tasks)):  # their CPU seconds would be missing
                raise DataError(
                    f"Only {len(last)} of {min(workers, len(tasks))} actors said at the end of the "
                    "build what it took them. Measure again, when less else runs here."
                )
            for builder in last:
                peaks[builder.builder] = max(peaks.get(builder.builder, 0), builder.peak_bytes)
            text_bytes = report.bytes
            say(f"the bare encoder, turn {turn + 1}")
            ours_s = sum(builder.cpu_s for builder in last)
            turns.append((ours_s, _bare_s(tasks, model, workers=workers), clock_s))
    ours, bare, clock = (statistics.median(column) for column in zip(*turns, strict=True))
    ratios = [theirs / own for own, theirs, _ in turns]
    return {
        "text_bytes": text_bytes,
        "workers": workers,
        "repeats": repeats,
        "ours": text_bytes / 1e6 / ours,
        "bare": text_bytes / 1e6 / bare,
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "clock": text_bytes / 1e6 / clock,
        "peak_bytes": [peaks[number] for number in sorted(peaks)],
    }


def in_words(found: dict[str, Any]) -> str:
    """The measurement for a person."""
    peaks = ", ".join(f"{peak / 1e6:,.0f}" for peak in found["peak_bytes"])
    return "\n".join(
        [
            f"text        {found['text_bytes'] / 1e6:,.1f} MB, {found['workers']} actors",
            f"ours        {found['ours']:.2f} MB a CPU second: read, encode, write, hash",
            (
                f"bare        {found['bare']:.2f} MB a CPU second: sentencepiece alone, "
                f"{found['workers']} processes"
            ),
            (
                f"ratio       {found['ratio']:.3f} "
                f"({found['lowest']:.3f} to {found['highest']:.3f} in {found['repeats']} turns)"
            ),
            f"clock       {found['clock']:.2f} MB a second, from the plan to the manifest",
            f"memory      {peaks} MB at most, by actor",
        ]
    )


def _bare_s(tasks: Sequence[Task], model: str, *, workers: int) -> float:
    """CPU seconds of the library's encoder over all texts, `workers` processes at once."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawned) as pool:
        return sum(pool.map(_bare_task_s, tasks, [model] * len(tasks)))


def _bare_task_s(task: Task, model: str) -> float:
    encode = Tokenizer(read_bytes(model)).bare_encoder()
    texts = [item.text.encode() for item in read_task(task) if isinstance(item, Document)]
    encode(texts[0] if texts else b"")
    began_s = time.process_time()
    for text in texts:
        encode(text)
    return time.process_time() - began_s
