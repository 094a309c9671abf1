"""`longrow demo`: the main job from corpus to text, on a corpus that comes with the package."""

import json
import os
from importlib.resources import files
from typing import Any

import click

from jobs.entry import Exit, Job, Outcome, run
from jobs.visible import echo

QUICK: dict[str, dict[str, Any]] = {
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
def command(quick: bool, sets: tuple[str, ...]) -> Outcome:
    """Train a small model on real documents, and show what its memory is worth.

    Writes runs/ and stores/ in the current folder. Ctrl-C saves a checkpoint; the same command goes
    on from there.
    """
    import tomllib

    from jobs.config import read_config
    from jobs.drive import folder_of

    tables = tomllib.loads(files("jobs").joinpath("demo.toml").read_text(encoding="utf-8"))
    if quick:
        tables = {key: tables.get(key, {}) | QUICK.get(key, {}) for key in tables | QUICK}
    config = read_config(base=tables, sets=sets, environment=os.environ)
    folder = folder_of(config)
    summary = folder.read_json("summary.json")
    same = folder.read_json("config.json") == config.to_dict()
    if same and summary and summary["steps"] >= config.trainer.steps:
        echo(f"{folder.path} is done already; remove it to run the demo anew.\n")
        return _close(config, summary)
    try:
        return _run(config)
    except KeyboardInterrupt:
        echo("longrow: Stopped at once; `longrow demo` goes on from what is done.", err=True)
        return Outcome(code=Exit.INTERRUPTED)


def _run(config: Any) -> Outcome:
    from jobs.corpus import shipped_files
    from jobs.prepare import prepare_and_drive

    driven = prepare_and_drive(config, shipped_files(), resume="auto", say_ray=True)
    if driven.code is not Exit.DONE:
        echo(f"longrow: {driven.message}", err=True)
        return Outcome(facts=driven.summary.to_json(), code=driven.code)
    return _close(config, driven.summary.to_json())


def _close(config: Any, summary: dict[str, Any]) -> Outcome:
    """The closing table, a sample of text, and where to look further."""
    from jobs.drive import folder_of
    from jobs.report import table, ways_on

    folder = folder_of(config)
    echo(table(summary))
    samples = sorted((folder.path / "samples").glob("*.json"))
    if samples:
        first = json.loads(samples[-1].read_text(encoding="utf-8"))[0]
        echo(f"\nA held-out document, {first['document']}, begun by its author:")
        echo(_indented(first["prompt"]))
        echo("and gone on with by the model:")
        echo(_indented(first["text"]))
    echo(f"\nLook further:\n{ways_on(config)}")
    return Outcome(facts=summary)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip("\n").split("\n"))


if __name__ == "__main__":
    run(command)
