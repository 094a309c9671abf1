"""`longrow pin`: keep a checkpoint for good, whatever newer ones come."""

from contextlib import suppress

import click

from jobs.entry import Job, Outcome, run


@click.command("pin", cls=Job)
@click.argument("checkpoint")
@click.option("--unpin", is_flag=True, help="Take the pin off: the usual rules hold for it again.")
def command(checkpoint: str, *, unpin: bool) -> Outcome:
    """Keep a checkpoint for good, whatever newer ones come.

    CHECKPOINT is a folder in a run's checkpoints/, or a run: then its newest whole one.
    """
    from jobs.find import find_checkpoint
    from trainer.checkpoint import CheckpointError
    from trainer.retention import PINNED

    path = find_checkpoint(checkpoint)
    if unpin:
        (path / PINNED).unlink(missing_ok=True)
    else:
        with suppress(FileNotFoundError):  # said below
            (path / PINNED).touch()
        if not (path / "manifest.json").exists():  # the run removed it at this moment
            raise CheckpointError(
                f"{path} was removed by its run while it was being pinned. Pin another one."
            )
    click.echo(f"{path} is {'not pinned' if unpin else 'pinned'}.")
    return Outcome(facts={"checkpoint": str(path), "pinned": not unpin})


if __name__ == "__main__":
    run(command)
