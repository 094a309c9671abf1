"""`longrow pin`: keep a checkpoint for good, whatever newer ones come."""

from contextlib import suppress

import click

from jobs.entry import Job, Outcome, run
from jobs.visible import echo


@click.command("pin", cls=Job)
@click.argument("checkpoint")
@click.option("--unpin", is_flag=True, help="Take the pin off: the usual rules hold for it again.")
def command(checkpoint: str, *, unpin: bool) -> Outcome:
    """Keep a checkpoint for good, whatever newer ones come.

    CHECKPOINT is a folder in a run's checkpoints/, or a run: then its newest whole one.
    """
    from jobs.find import find_checkpoint, run_of
    from trainer.checkpoint import CheckpointError
    from trainer.retention import PINNED
    from trainer.run_folder import CHECKPOINTS

    path = find_checkpoint(checkpoint)
    folder, mark = run_of(path), f"{CHECKPOINTS}/{path.name}/{PINNED}"
    shown = folder.named(str(path))
    if unpin:
        folder.remove(mark)
    else:
        with suppress(FileNotFoundError):  # said below
            folder.touch(mark)
        if not folder.exists(f"{CHECKPOINTS}/{path.name}/manifest.json"):  # the run removed it
            folder.remove(mark)
            raise CheckpointError(
                f"{shown} was removed by its run while it was being pinned. Pin another one."
            )
    echo(f"{shown} is {'not pinned' if unpin else 'pinned'}.")
    return Outcome(facts={"checkpoint": shown, "pinned": not unpin})


if __name__ == "__main__":
    run(command)
