"""`longrow train`: a config in, a trained run out; the same command again goes on with it."""

import json
from pathlib import Path

import click

from jobs.entry import Job, Outcome, run
from jobs.run_options import config_argument, resume_option, set_option
from jobs.visible import echo


@click.command("train", cls=Job)
@config_argument
@click.argument("corpus", nargs=-1)
@click.option("--build", is_flag=True, help="Train while CORPUS, or data.inputs, is tokenized.")
@set_option
@resume_option
@click.option(
    "--init",
    metavar="CHECKPOINT",
    help="Begin a new run with the weights, and only these, of a checkpoint, run or folder.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Do one step, say what the run would take, write nothing.",
)
def command(
    config: Path,
    corpus: tuple[str, ...],
    *,
    build: bool,
    sets: tuple[str, ...],
    resume: str,
    init: str | None,
    dry_run: bool,
) -> Outcome:
    """Train the run that the TOML file CONFIG describes.

    Where it names a corpus in data.inputs, its store is built first, or what is missing of it. With
    --build the first step is taken as soon as its documents are there; a CORPUS named here takes
    the place of data.inputs.
    """
    import os

    from jobs.begin import settle_init
    from jobs.config import read_config
    from jobs.drive import drive, say
    from jobs.report import finish
    from jobs.shared_paths import check_outlives_the_job

    if corpus and not build:
        raise click.UsageError("A corpus after CONFIG is for --build: add it, or set data.inputs.")
    if build and dry_run:
        raise click.UsageError("--dry-run does a step on a finished store: leave out --build.")
    if build:
        sets += ("data.train_while_building=true",)
        sets += (f"data.inputs={json.dumps(corpus)}",) if corpus else ()
    if init is not None:
        sets = (*sets, f"run.init={json.dumps(init)}")
    read = read_config(config, sets=sets, environment=os.environ)
    check_outlives_the_job(read, os.environ)
    read = settle_init(read, say=say)
    if dry_run:
        from jobs.dry_run import dry_run as try_out
        from jobs.dry_run import in_words
        from jobs.report import table

        facts = try_out(read)
        echo(f"{table(in_words(facts))}\n")
        echo(read.to_toml(), err=True)
        return Outcome(facts=facts)
    echo(read.to_toml(), err=True)
    if read.data.train_while_building:
        from jobs.prepare import build_and_drive

        return finish(read, build_and_drive(read, read.data.inputs, resume=resume))
    if read.data.inputs:
        from jobs.prepare import prepare_and_drive

        return finish(read, prepare_and_drive(read, read.data.inputs, resume=resume))
    return finish(read, drive(read, resume=resume))


if __name__ == "__main__":
    run(command)
