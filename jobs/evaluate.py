"""`longrow evaluate`: a model on held-out documents, by memory length or by true context."""

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from jobs.entry import Exit, Job, Outcome, run
from jobs.visible import echo

if TYPE_CHECKING:
    from jobs.crew import Crew
    from jobs.find import Found
    from pipeline.store import Store
    from trainer.evaluation import Scores
    from trainer.load import Loaded

FROM_0 = click.IntRange(min=0)
FROM_1 = click.IntRange(min=1)
_OF_CONTEXT: dict[str, Any] = {"contexts": (), "blocks": 128, "block": 16, "beside": ""}


def _lengths(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        lengths = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        lengths = (-1,)
    if any(length < 0 for length in lengths):
        raise click.BadParameter(f"{text!r} must be lengths from 0 up, like 0,128,640.")
    return tuple(dict.fromkeys(lengths))


@click.command("evaluate", cls=Job)
@click.argument("run_name", metavar="RUN|CHECKPOINT|FOLDER")
@click.option("--memory", default="", callback=_lengths, help="Like 0,128; else M and 0.")
@click.option("--context", is_flag=True, help="Measure how many tokens of context are used.")
@click.option("--contexts", default="", callback=_lengths, help="With --context: like 0,64,128.")
@click.option("--blocks", type=FROM_1, default=128, help="With --context: blocks scored. 128")
@click.option("--block", type=FROM_1, default=16, help="With --context: targets of a block. 16")
@click.option("--beside", default="", help="With --context: another model, on the same targets.")
@click.option("--rows", type=FROM_0, default=0, help="Rows read at once; 0 takes training's.")
@click.option("--segment", type=FROM_0, default=0, help="Tokens read at a time; 0 as training.")
@click.option(
    "--clamp",
    type=click.IntRange(min=0, max=1 << 53),
    help="Distances above it count as it; 0 never clamps.",
)
@click.option("--same-length", is_flag=True, help="A query sees as many keys as the memory has.")
@click.option("--store", default="", help="Other documents of the model's tokenizer.")
@click.option("--workers", type=FROM_0, default=0, help="Share the rows; 0: one a GPU, else one.")
def command(
    run_name: str,
    memory: tuple[int, ...],
    *,
    rows: int,
    segment: int,
    store: str,
    context: bool,
    workers: int,
    **options: Any,
) -> Outcome:
    """Score every target of the held-out documents once, with each memory length.

    RUN is a run's folder or its name under runs/, of which the newest whole checkpoint is taken;
    FOLDER one that `longrow export` or `import-weights` wrote. With --context a sample of targets
    is scored once more for each context length, and docs/evaluation.md says how. Several workers
    are processes of a Ray that is started for it; their number changes no count, and sums by
    rounding only.
    """
    from jobs.crew import crew
    from jobs.find import load
    from trainer.evaluation import no_documents
    from trainer.scorer import WorkerDiedError

    if not context and any(options[key] != usual for key, usual in _OF_CONTEXT.items()):
        raise click.UsageError(
            "--contexts, --blocks, --block and --beside belong to --context: add it."
        )
    found = load(run_name)
    own = _settings_that_change(found.loaded)
    if store:
        found = replace(found, loaded=found.loaded.with_store(store))
    loaded = found.loaded
    opened = loaded.open_store()
    if not len(opened.doc_ids("validation")):
        raise no_documents(loaded.store)
    loaded.model.config = replace(
        loaded.model.config,
        clamp_len=loaded.model.config.clamp_len if options["clamp"] is None else options["clamp"],
        same_length=loaded.model.config.same_length or options["same_length"],
    )
    found = replace(
        found,
        loaded=replace(
            loaded,
            layout=replace(
                loaded.layout,
                rows=rows or loaded.layout.rows,
                segment=segment or loaded.layout.segment,
            ),
        ),
    )
    given = _settings_that_change(found.loaded) | {"store": opened.fingerprint}
    if context:
        own |= {"segment": loaded.layout.segment, **_OF_CONTEXT}
        given |= {key: options[key] for key in _OF_CONTEXT}
        given["segment"] = found.loaded.layout.segment
    found = replace(found, suffix=_suffix(own, given))
    if options["beside"]:
        from jobs.context_beside import measure_beside as measure
    elif context:
        from jobs.context import measure_context as measure
    else:
        measure = _sweep
    try:
        with crew(found, opened, workers=workers) as scorers:
            return measure(
                found, opened, scorers, memory=memory, options=options | {"workers": workers}
            )
    except WorkerDiedError as error:
        echo(f"longrow: {error}", err=True)
        return Outcome(facts={"error": str(error)}, code=Exit.FAILED)


def _settings_that_change(loaded: "Loaded") -> dict[str, Any]:
    """What a name of files does not say beside step and memory, or segment."""
    config = loaded.model.config
    return {
        "store": loaded.store_fingerprint,
        "rows": loaded.layout.rows,
        "clamp": config.clamp_len,
        "same_length": config.same_length,
    }


def _suffix(own: dict[str, Any], given: dict[str, Any]) -> str:
    """Keeps an evaluation with other settings than its own from taking another one's place."""
    other = sorted((key, given[key]) for key in given if given[key] != own[key])
    return f"-{hashlib.sha256(json.dumps(other).encode()).hexdigest()[:8]}" if other else ""


def _sweep(
    found: "Found", store: "Store", crew: "Crew", *, memory: tuple[int, ...], **_options: Any
) -> Outcome:
    from jobs.keep import keep
    from trainer.pictures import memory_sweep

    scores = score(found, store, crew, memory)
    settings = settings_of(found, store)
    echo(
        f"{found.name}: {scores[0].documents:,} held-out documents, {scores[0].targets:,} targets, "
        f"segment {scores[0].segment}, clamp {scores[0].clamp or 'none'}"
    )
    rows = [row_of(score) for score in scores]
    echo("  ".join(f"{name:>10}" for name in rows[0]))
    for row in rows:
        cells = (
            f"{cell:>10,}" if isinstance(cell, int) else f"{cell:>10.4f}" for cell in row.values()
        )
        echo("  ".join(cells))
    facts = settings | {"scores": [score.to_json() for score in scores]}
    kept = keep(
        found,
        f"memory_step_{found.loaded.step:08d}_L{scores[0].segment}",
        facts=facts,
        rows=rows,
        draw=lambda path: memory_sweep(
            scores, path, title=f"{found.name}: held-out loss by memory"
        ),
    )
    echo("\n".join(f"written: {place}" for place in kept))
    return Outcome(facts=facts | {"files": kept})


def score(found: "Found", store: "Store", crew: "Crew", memory: tuple[int, ...]) -> "list[Scores]":
    """Score the held-out documents with each memory length; the model's and 0 where none is given.

    A model that sees as many keys as its memory has (same_length) cannot be scored with 0.
    """
    from jobs.progress import Progress
    from trainer.evaluation import Wanted, scores_of

    loaded = found.loaded
    config = loaded.model.config
    usual = (config.memory,) if config.same_length else (config.memory, 0)
    total = int((store.num_tokens("validation") + 1).sum())
    scores: list[Scores] = []
    for length in memory or tuple(dict.fromkeys(usual)):
        wanted = Wanted(rows=loaded.layout.rows, segment=loaded.layout.segment, memory=length)
        with Progress(f"memory {length}", unit="targets") as progress:
            sums = crew.sums(wanted, tell=lambda done, show=progress.show: show(done, total))
        scores.append(scores_of(sums, store, wanted, step=loaded.step, clamp=config.clamp_len))
    return scores


def settings_of(found: "Found", store: "Store") -> dict[str, Any]:
    """What the numbers depend on, beside the lengths that stand with each of them."""
    config = found.loaded.model.config
    return {
        "checkpoint": found.shown,
        "step": found.loaded.step,
        "store": store.url,
        "store_fingerprint": store.fingerprint,
        "split": "validation",
        "rows": found.loaded.layout.rows,
        "segment": found.loaded.layout.segment,
        "clamp": config.clamp_len,
        "same_length": config.same_length,
        "training_memory": config.memory,
    }


def row_of(score: "Scores") -> dict[str, int | float]:
    """A line of the table."""
    return {
        "memory": score.memory,
        "nats/token": score.loss,
        "perplexity": score.perplexity,
        "bits/byte": score.bits_per_byte,
        "bits/char": score.bits_per_char,
        "bits/word": score.bits_per_word,
    }


if __name__ == "__main__":
    run(command)
