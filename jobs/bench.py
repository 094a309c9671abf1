"""`longrow bench`: speed on this machine, each figure beside a bare loop of the same run."""

from collections.abc import Callable
from typing import Any

import click

from jobs.corpus import shipped_files
from jobs.entry import Job, Outcome, run
from jobs.visible import echo

# What each measurement can be told; the rest is refused.
OPTIONS = {
    "pipeline": ("inputs", "tokenizer", "rows", "segment"),
    "build": ("inputs", "tokenizer", "workers"),
    "model": ("threads",),
    "attention": ("threads",),
    "generate": ("threads",),
    "serve": ("inputs", "tokenizer", "rows", "segment"),
    "train": ("inputs", "tokenizer", "workers", "rows", "segment", "steps", "launcher"),
}


@click.command("bench", cls=Job)
@click.argument("what", type=click.Choice(list(OPTIONS)))
@click.argument("inputs", nargs=-1)
@click.option("--tokenizer", default="", help="File or URL; without it one is made first.")
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    help="Of every measurement; medians are shown. 5, of train 1",
)
@click.option(
    "--rows", type=click.IntRange(min=1), help="Of pipeline, serve and train: B. 64, of train 8"
)
@click.option(
    "--segment",
    type=click.IntRange(min=1),
    help="Of pipeline, serve and train: L. 512, of train 128",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Of build: actors, and processes of the bare encoder, 2; of train: of the run, 1",
)
@click.option("--threads", type=click.IntRange(min=1), help="Of model, attention, generate. 1")
@click.option("--steps", type=click.IntRange(min=20), help="Of train. 100")
@click.option("--launcher", type=click.Choice(["ray", "local"]), help="Of train. ray")
def command(what: str, *, tokenizer: str, repeats: int | None, **given: Any) -> Outcome:
    """Measure a part of the system beside bare loops of the libraries below it.

    INPUTS are a corpus; without it the one that comes with the project. `pipeline` takes each stage
    by itself, in this process; `build` lets actors build; `model` and `attention` stand beside what
    this machine can do at most, `generate` beside hidden states, and beside a window slid over the
    text when it scores; `serve` and `train` are the parts and the whole of a run.
    """
    told = {name: value for name, value in given.items() if value}
    if tokenizer:
        told["tokenizer"] = tokenizer
    if unused := [name for name in told if name not in OPTIONS[what]]:
        name = unused[0].upper() if unused[0] == "inputs" else f"--{unused[0]}"
        raise click.UsageError(f"`bench {what}` uses no {name}: leave it out.")
    if "inputs" in OPTIONS[what]:
        told["inputs"] = told.get("inputs") or shipped_files()
    usual = 1 if what == "train" else 5
    found = _MEASURES[what](
        told, repeats or usual, lambda name: echo(f"measuring: {name}", err=True)
    )
    return Outcome(facts={"bench": what, **found})


def _pipeline(told: dict[str, Any], repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    from jobs.bench_pipeline import measure  # its libraries are slow to import
    from pipeline.layout import Layout

    layout = Layout(rows=told.pop("rows", 64), segment=told.pop("segment", 512))
    figures = measure(repeats=repeats, layout=layout, say=say, **told)
    echo(in_words(figures))
    return {"repeats": repeats, "figures": figures}


def _build(told: dict[str, Any], repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    from jobs import bench_build  # Ray is slow to import

    found = bench_build.measure_build(repeats=repeats, say=say, **told)
    echo(bench_build.in_words(found))
    return found


def _model(told: dict[str, Any], repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    from jobs.bench_model import measure_model

    _set_threads(told)
    return _shown(measure_model(repeats=repeats, say=say))


def _attention(told: dict[str, Any], repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    from jobs.bench_attention import measure_attention

    _set_threads(told)
    return _shown(measure_attention(repeats=repeats, say=say))


def _generate(told: dict[str, Any], repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    from jobs.bench_generate import MODEL, measure_generate
    from jobs.bench_windows import measure_windows

    _set_threads(told)
    found = measure_generate(repeats=repeats, say=say)
    found["figures"] += measure_windows(config=MODEL, repeats=repeats, say=say)["figures"]
    return _shown(found)


def _serve(told: dict[str, Any], repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    from jobs.bench_serve import measure_serve
    from pipeline.layout import Layout

    layout = Layout(rows=told.pop("rows", 64), segment=told.pop("segment", 512))
    return _shown(measure_serve(repeats=repeats, layout=layout, say=say, **told))


def _train(told: dict[str, Any], repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    from jobs.bench_model import Shape
    from jobs.bench_train import measure_train

    shape = Shape(rows=told.pop("rows", 8), segment=told.pop("segment", 128))
    return _shown(measure_train(repeats=repeats, shape=shape, say=say, **told))


def _set_threads(told: dict[str, Any]) -> None:
    import torch

    torch.set_num_threads(told.get("threads", 1))


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    from jobs.bench_table import table

    echo(table(found))
    return found


_MEASURES = {
    "pipeline": _pipeline,
    "build": _build,
    "model": _model,
    "attention": _attention,
    "generate": _generate,
    "serve": _serve,
    "train": _train,
}


def in_words(figures: list[dict[str, Any]]) -> str:
    """The figures of `bench pipeline` as a table."""
    lines = [f"{'':<8}{'ours':>12}{'bare':>12}  {'a CPU second':<14}{'ratio':>6}  lowest highest"]
    lines += [
        f"{f['name']:<8}{f['ours']:>12,.2f}{f['bare']:>12,.2f}  {f['unit']:<14}{f['ratio']:>6.2f}"
        f"  {f['lowest']:>6.2f} {f['highest']:>7.2f}   {f['bare_loop']}"
        for f in figures
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run(command)
