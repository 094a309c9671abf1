"""`longrow evaluate --context`: how many tokens of context the model uses, as a table."""

from collections.abc import Sequence
from typing import Any

import click
from torch import Tensor

from jobs.crew import Crew
from jobs.entry import Outcome
from jobs.evaluate import score, settings_of
from jobs.find import Found
from jobs.keep import keep
from jobs.progress import Progress
from jobs.visible import echo
from pipeline.errors import DataError
from pipeline.store import Store
from trainer.context import (
    Block,
    ContextPoint,
    EffectiveContext,
    Measure,
    choose_blocks,
    context_points,
    effective_context,
)
from trainer.pictures import loss_by_context

RATIOS = (0.1, 0.5, 1.0)  # of the paper
STEPS = 16  # of context, where no lengths are given
FEW = 32  # blocks; with fewer, shorter contexts are measured


def measure_context(
    found: Found, store: Store, crew: Crew, *, memory: tuple[int, ...], options: dict[str, Any]
) -> Outcome:
    """Measure, print, draw and keep.

    Args:
        found: The model.
        store: Its held-out documents.
        crew: Who reads them.
        memory: One length at most; none takes the model's.
        options: `contexts`, `blocks` and `block` of the command.

    Raises:
        click.UsageError: Several memory lengths, or one context length.
        DataError: No held-out document is long enough.
    """
    blocks, measure = choose(found, store, memory=memory, options=options)
    losses = read(crew, blocks, measure)
    points = context_points(losses, measure.contexts)
    effective = [effective_context(losses, measure.contexts, ratio=ratio) for ratio in RATIOS]
    rows = rows_of(points, effective)
    scores = score(found, store, crew, (measure.memory,) if memory else ())
    echo(f"{found.name}: {in_words(blocks, measure)}")
    tell(rows, effective)
    facts = facts_of(found, store, blocks, measure) | {
        "contexts": [finite(row) for row in rows],
        "effective_context": [one.to_json() for one in effective],
        "scores": [one.to_json() for one in scores],
    }
    title = f"{found.name}: by true context, memory {measure.memory}"
    kept = keep(
        found,
        f"context_step_{found.loaded.step:08d}_M{measure.memory}",
        facts=facts,
        rows=[finite(row) for row in rows],
        draw=lambda path: loss_by_context(points, effective, scores, path, title=title),
    )
    echo("\n".join(f"written: {place}" for place in kept))
    return Outcome(facts=facts | {"files": kept})


def choose(
    found: Found, store: Store, *, memory: tuple[int, ...], options: dict[str, Any]
) -> tuple[list[Block], Measure]:
    """The blocks that are scored, and how; arguments and errors are those of `measure_context`."""
    if len(memory) > 1:
        raise click.UsageError("--context takes one --memory length at a time.")
    given = tuple(sorted(options["contexts"]))
    if len(given) == 1:
        raise click.UsageError("--contexts needs two lengths or more, like 0,64,128.")
    loaded = found.loaded
    kept_states = memory[0] if memory else loaded.model.config.memory
    size, most = options["block"], options["blocks"]
    reach = 4 * max(kept_states, loaded.layout.segment)
    contexts, blocks = (
        (given, choose_blocks(store, least=given[-1], size=size, most=most))
        if given
        else _usual(store, longest=reach, size=size, most=most)
    )
    if not blocks:
        longest = int(store.num_tokens("validation").max()) + 1
        raise DataError(
            f"The longest held-out document has {longest:,} inputs; {contexts[-1]:,} tokens of "
            f"context and a block of {size} after them were wanted. Give shorter --contexts, or a "
            "smaller --block."
        )
    return blocks, Measure(
        contexts=contexts, size=size, segment=loaded.layout.segment, memory=kept_states, rows=32
    )


def read(crew: Crew, blocks: list[Block], measure: Measure, *, label: str = "contexts") -> Tensor:
    """Losses, (C, blocks, size), while a person sees how far it is."""
    total = sum(context + measure.size for context in measure.contexts) * len(blocks)
    with Progress(label, unit="tokens") as progress:
        return crew.losses(blocks, measure, tell=lambda done: progress.show(done, total))


def rows_of(
    points: Sequence[ContextPoint], effective: Sequence[EffectiveContext]
) -> list[dict[str, Any]]:
    """Lines of the table; the longest context has no next one to gain from: NaN."""
    return [
        {"context": point.context, "nats/token": point.loss, "error": point.error}
        | {
            f"gain_r{one.ratio:g}": one.gains[number] if number < len(one.gains) else float("nan")
            for one in effective
        }
        for number, point in enumerate(points)
    ]


def in_words(blocks: Sequence[Block], measure: Measure) -> str:
    """What was scored, and how."""
    return (
        f"the same {len(blocks) * measure.size:,} targets for every context, {len(blocks):,} "
        f"blocks of {len({block.doc_id for block in blocks}):,} held-out documents; "
        f"{memory_of(measure)}"
    )


def memory_of(measure: Measure) -> str:
    """How far a model looks, in words."""
    if not measure.memory:
        return "no memory: context and block are one segment"
    return f"memory {measure.memory}, segment {measure.segment}"


def tell(rows: list[dict[str, Any]], effective: Sequence[EffectiveContext]) -> None:
    """Print the table, and the effective lengths below it."""
    echo(_table(rows))
    for one in effective:
        sign = "at least " if one.at_least else ""
        echo(f"effective context, r = {one.ratio:g}: {sign}{one.length:,} tokens")


def facts_of(found: Found, store: Store, blocks: list[Block], measure: Measure) -> dict[str, Any]:
    """What the numbers depend on."""
    return settings_of(found, store) | {
        "memory": measure.memory,
        "block": measure.size,
        "blocks": len(blocks),
        "targets": len(blocks) * measure.size,
    }


def _usual(
    store: Store, *, longest: int, size: int, most: int
) -> tuple[tuple[int, ...], list[Block]]:
    """Even steps up to `longest`, or to what enough documents have."""
    while True:
        step = max(1, longest // STEPS)
        contexts = tuple(range(0, longest + 1, step))
        blocks = choose_blocks(store, least=contexts[-1], size=size, most=most)
        if len(blocks) >= min(FEW, most) or longest <= 2:
            return contexts, blocks
        longest = longest * 3 // 4


def _table(rows: list[dict[str, Any]]) -> str:
    lines = ["  ".join(f"{name:>10}" for name in rows[0])]
    for row in rows:
        cells = (
            f"{'':>10}"
            if value != value
            else f"{value:>10,}"
            if isinstance(value, int)
            else f"{value:>10.4f}"
            for value in row.values()
        )
        lines.append("  ".join(cells))
    return "\n".join(lines)


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """Without what is no number: JSON has no NaN."""
    return {name: None if value != value else value for name, value in row.items()}
