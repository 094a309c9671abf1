"""`longrow evaluate --context --beside`: the effective contexts of two models, by the paper.

Both score the same targets after the same contexts, and a step of context is worth what it adds to
the better of the two with the shorter one. A model without memory gets its context as a window.
"""

from dataclasses import replace
from typing import Any

from jobs.context import (
    RATIOS,
    choose,
    facts_of,
    finite,
    in_words,
    memory_of,
    read,
    rows_of,
    tell,
)
from jobs.crew import Crew, crew
from jobs.entry import Outcome
from jobs.find import Found, load
from jobs.keep import keep
from jobs.visible import echo
from pipeline.store import Store
from trainer.context import context_points, effective_context
from trainer.pictures import ContextCurve, two_by_context


def measure_beside(
    found: Found, store: Store, crew_here: Crew, *, memory: tuple[int, ...], options: dict[str, Any]
) -> Outcome:
    """Measure two models, print, draw and keep it with the first.

    Args:
        found: The model.
        store: Its held-out documents.
        crew_here: Who reads them with it.
        memory: Of the first, as in `measure_context`; the other has its own.
        options: As there, and `beside`, the other model, and `workers`.

    Raises:
        click.UsageError: As there.
        DataError: As there.
        ModelError: The other model is of another tokenizer.
    """
    other = load(options["beside"])
    other = replace(other, loaded=other.loaded.with_store(store.url))
    other.loaded.open_store()  # before anything is read
    blocks, measure = choose(found, store, memory=memory, options=options)
    measures = [measure, replace(measure, memory=other.loaded.model.config.memory)]
    losses = [read(crew_here, blocks, measures[0], label="first")]
    with crew(other, store, workers=options["workers"]) as scorers:
        losses.append(read(scorers, blocks, measures[1], label="second"))
    echo(f"{found.name} beside {options['beside']}: {in_words(blocks, measure)}")
    models: list[dict[str, Any]] = []
    curves: list[ContextCurve] = []
    for one, how, mine in zip((found, other), measures, losses, strict=True):
        points = context_points(mine, how.contexts)
        effective = [
            effective_context(mine, how.contexts, ratio=ratio, group=losses) for ratio in RATIOS
        ]
        rows, by_place = rows_of(points, effective), mine.mean(dim=1)
        echo(f"\n{one.shown}: {memory_of(how)}")
        tell(rows, effective)
        models.append(
            {
                "checkpoint": one.shown,
                "step": one.loaded.step,
                "memory": how.memory,
                "contexts": [finite(row) for row in rows],
                "effective_context": [each.to_json() for each in effective],
                "nats_by_place": {
                    str(how.contexts[end]): by_place[end].tolist() for end in (0, -1)
                },
            }
        )
        curves.append(
            ContextCurve(
                label=f"{_short(one)}, memory {how.memory}",
                points=points,
                effective=effective,
                by_place=(by_place[0].tolist(), by_place[-1].tolist()),
            )
        )
    facts = facts_of(found, store, blocks, measure) | {"models": models}
    kept = keep(
        found,
        f"context_step_{found.loaded.step:08d}_M{measure.memory}",
        facts=facts,
        rows=[{"model": told["checkpoint"]} | row for told in models for row in told["contexts"]],
        draw=lambda path: two_by_context(curves, path, title="by true context, one group"),
    )
    echo("\n".join(f"written: {place}" for place in kept))
    return Outcome(facts=facts | {"files": kept})


def _short(found: Found) -> str:
    """What tells two models of a picture apart: the run, where there is one."""
    return found.folder.path.name if found.folder else found.name
