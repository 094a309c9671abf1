"""`longrow verify`: every byte of a store against its manifest."""

import click

from jobs.entry import Exit, Job, Outcome, run
from pipeline.store import Store


@click.command("verify", cls=Job)
@click.argument("store")
def command(store: str) -> Outcome:
    """Check every byte of a store."""
    opened = Store.open(store)
    faults = opened.verify()
    for fault in faults:
        print(fault)
    if not faults:
        print(
            f"{store} is whole: {opened.manifest.documents:,} documents in "
            f"{len(opened.manifest.parts):,} parts, fingerprint {opened.fingerprint}"
        )
    return Outcome(
        facts={"store": store, "fingerprint": opened.fingerprint, "faults": faults},
        code=Exit.BAD_DATA if faults else Exit.DONE,
    )


if __name__ == "__main__":
    run(command)
