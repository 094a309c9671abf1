"""`longrow verify`: every byte of a store, a run's checkpoints or one checkpoint is as written."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.entry import Exit, Job, Outcome, run
from jobs.visible import echo

if TYPE_CHECKING:
    from trainer.run_folder import RunFolder


@click.command("verify", cls=Job)
@click.argument("what")
def command(what: str) -> Outcome:
    """Check every byte of a store, of a checkpoint, or of a run's checkpoints.

    WHAT is a store, a checkpoint's folder, or a run's folder or name; each has a manifest with the
    sha256 of its files.
    """
    from jobs.find import checkpoint_at, find_run, is_checkpoint, is_run

    if is_checkpoint(what):
        from trainer.checkpoint import faults_of

        facts, found = _checkpoints([checkpoint_at(what)], look=faults_of)
    elif is_run(what):
        from trainer.checkpoint import checkpoints, faults_now

        # What the run removes meanwhile is no fault of it.
        facts, found = _checkpoints(checkpoints(find_run(what).checkpoints), look=faults_now)
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


def _checkpoints(
    paths: list[Path], *, look: Callable[["RunFolder", Path], list[str] | None]
) -> tuple[dict[str, Any], list[str]]:
    from jobs.find import run_of

    found: list[str] = []
    kept: list[str] = []
    for path in paths:
        folder = run_of(path.absolute())
        wrong = look(folder, path)
        folder.let_go(path)
        if wrong is None:
            continue
        kept.append(path.name)
        found += wrong
        if not wrong:
            echo(f"{folder.named(str(path))} is whole.")
    if not kept:
        echo("The run has no checkpoint yet.")
    return {"checkpoints": kept}, found


if __name__ == "__main__":
    run(command)
