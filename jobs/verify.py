"""`longrow verify`: every byte of a store, a run's checkpoints or one checkpoint is as written."""

from pathlib import Path
from typing import Any

import click

from jobs.entry import Exit, Job, Outcome, run
from jobs.visible import echo


@click.command("verify", cls=Job)
@click.argument("what")
def command(what: str) -> Outcome:
    """Check every byte of a store, of a checkpoint, or of a run's checkpoints.

    WHAT is a store, a checkpoint's folder, or a run's folder or name; each has a manifest with the
    sha256 of its files.
    """
    from jobs.find import checkpoint_at, find_run, is_checkpoint, is_run

    if is_checkpoint(what):
        facts, found = _checkpoints([checkpoint_at(what)])
    elif is_run(what):
        from trainer.checkpoint import checkpoints

        facts, found = _checkpoints(checkpoints(find_run(what).checkpoints))
    else:
        facts, found = _store(what)
    for fault in found:
        echo(fault)
    return Outcome(facts=facts | {"faults": found}, code=Exit.BAD_DATA if found else Exit.DONE)


def _store(what: str) -> tuple[dict[str, Any], list[str]]:
    from pipeline.store import Store

    opened = Store.open(what)
    found = opened.verify()
    if not found:
        parts = len(opened.manifest.parts)
        echo(
            f"{what} is whole: {opened.documents:,} documents in {parts:,} "
            f"part{'s' if parts != 1 else ''}, fingerprint {opened.fingerprint}"
        )
    return {"store": what, "fingerprint": opened.fingerprint}, found


def _checkpoints(paths: list[Path]) -> tuple[dict[str, Any], list[str]]:
    from jobs.find import run_of
    from trainer.checkpoint import faults_of

    found: list[str] = []
    for path in paths:
        folder = run_of(path.absolute())
        wrong = faults_of(folder, path)
        folder.let_go(path)
        found += wrong
        if not wrong:
            echo(f"{folder.named(str(path))} is whole.")
    if not paths:
        echo("The run has no checkpoint yet.")
    return {"checkpoints": [path.name for path in paths]}, found


if __name__ == "__main__":
    run(command)
