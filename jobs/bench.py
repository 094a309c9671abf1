"""`longrow bench`: speed on this machine, each figure beside a bare loop of the same run."""

from typing import Any

import click

from jobs.corpus import shipped_files
from jobs.entry import Job, Outcome, run


@click.command("bench", cls=Job)
@click.argument("what", type=click.Choice(["pipeline", "build"]))
@click.argument("inputs", nargs=-1)
@click.option("--tokenizer", default="", help="File or URL; without it one is trained first.")
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Of every measurement; medians are shown.",
)
@click.option("--rows", type=click.IntRange(min=1), help="Of pipeline: B. 64")
@click.option("--segment", type=click.IntRange(min=1), help="Of pipeline: L. 512")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Of build: actors, and processes of the bare encoder. 2",
)
def command(
    what: str,
    inputs: tuple[str, ...],
    *,
    tokenizer: str,
    repeats: int,
    rows: int | None,
    segment: int | None,
    workers: int | None,
) -> Outcome:
    """Measure a part of the system beside bare loops of the libraries below it.

    INPUTS are a corpus, which has to fit into memory; without it the one that comes with the
    project. `pipeline` takes each stage by itself, in this process; `build` lets actors build.
    """
    unused = (
        {"--workers": workers} if what == "pipeline" else {"--rows": rows, "--segment": segment}
    )
    if given := [name for name, value in unused.items() if value is not None]:
        raise click.UsageError(f"`bench {what}` uses no {given[0]}: leave it out.")
    if what == "build":
        from jobs import bench_build  # Ray is slow to import

        found = bench_build.measure_build(
            inputs or shipped_files(),
            tokenizer=tokenizer,
            workers=workers or 2,
            repeats=repeats,
            say=lambda name: click.echo(f"measuring: {name}", err=True),
        )
        print(bench_build.in_words(found))
        return Outcome(facts={"bench": what, **found})
    from jobs.bench_pipeline import measure  # its libraries are slow to import
    from pipeline.layout import Layout

    figures = measure(
        inputs or shipped_files(),
        tokenizer=tokenizer,
        repeats=repeats,
        layout=Layout(rows=rows or 64, segment=segment or 512),
        say=lambda name: click.echo(f"measuring: {name}", err=True),
    )
    print(in_words(figures))
    return Outcome(facts={"bench": what, "repeats": repeats, "figures": figures})


def in_words(figures: list[dict[str, Any]]) -> str:
    """The figures as a table."""
    lines = [f"{'':<8}{'ours':>12}{'bare':>12}  {'a CPU second':<14}{'ratio':>6}  lowest highest"]
    lines += [
        f"{f['name']:<8}{f['ours']:>12,.2f}{f['bare']:>12,.2f}  {f['unit']:<14}{f['ratio']:>6.2f}"
        f"  {f['lowest']:>6.2f} {f['highest']:>7.2f}   {f['bare_loop']}"
        for f in figures
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run(command)
