"""`longrow train`: a config in, a trained run out; the same command again goes on with it."""

import json
from pathlib import Path

import click

from jobs.entry import Job, Outcome, run


@click.command("train", cls=Job)
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("corpus", nargs=-1)
@click.option("--build", is_flag=True, help="Train while CORPUS, or data.inputs, is tokenized.")
@click.option("--set", "sets", multiple=True, metavar="SECTION.KEY=VALUE", help="Over the file.")
@click.option(
    "--resume",
    type=click.Choice(["auto", "never", "must"]),
    default="auto",
    show_default=True,
    help="Go on with the run of this name where there is one.",
)
def command(
    config: Path, corpus: tuple[str, ...], *, build: bool, sets: tuple[str, ...], resume: str
) -> Outcome:
    """Train the run that the TOML file CONFIG describes.

    Where it names a corpus in data.inputs, its store is built first, or what is missing of it. With
    --build the first step is taken as soon as its documents are there; a CORPUS named here takes
    the place of data.inputs.
    """
    import os

    from jobs.config import read_config
    from jobs.drive import drive
    from jobs.report import finish

    if corpus and not build:
        raise click.UsageError("A corpus after CONFIG is for --build: add it, or set data.inputs.")
    if build:
        sets += ("data.train_while_building=true",)
        sets += (f"data.inputs={json.dumps(corpus)}",) if corpus else ()
    read = read_config(config, sets=sets, environment=os.environ)
    click.echo(read.to_toml(), err=True)
    if read.data.train_while_building:
        from jobs.prepare import build_and_drive

        return finish(read, build_and_drive(read, read.data.inputs, resume=resume))
    if read.data.inputs:
        from jobs.prepare import prepare_and_drive

        return finish(read, prepare_and_drive(read, read.data.inputs, resume=resume))
    return finish(read, drive(read, resume=resume))


if __name__ == "__main__":
    run(command)
