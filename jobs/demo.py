"""`longrow demo`: the main job from corpus to text, on a corpus that comes with the package."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import click

from jobs.entry import Exit, Job, Outcome, run

CORPUS = ("definitions.jsonl", "factbook.jsonl.gz", "plays.jsonl")
QUICK = {
    "run": {"name": "demo-quick"},
    "data": {"store": "stores/demo-quick"},
    "tokenizer": {"vocab_size": 512},
    "model": {"layers": 2, "width": 64, "heads": 2, "head_width": 32, "inner_width": 256},
    "trainer": {"steps": 60},
    "optimizer": {"warmup_steps": 10},
    "evaluate": {"every": 0},
    "checkpoint": {"every": 20},
}


@click.command("demo", cls=Job)
@click.option("--quick", is_flag=True, help="A smaller model and fewer steps: about a minute.")
@click.option("--set", "sets", multiple=True, metavar="SECTION.KEY=VALUE", help="Other settings.")
def command(quick: bool, sets: tuple[str, ...]) -> Outcome:  # noqa: FBT001
    """Train a small model on real documents, and show what its memory is worth.

    Writes runs/ and stores/ in the current folder. Ctrl-C saves a checkpoint; the same command goes
    on from there.
    """
    try:
        return _demo(_config(sets, quick=quick))
    except KeyboardInterrupt:
        click.echo("longrow: Stopped; `longrow demo` goes on from what is done.", err=True)
        return Outcome(code=Exit.INTERRUPTED)
