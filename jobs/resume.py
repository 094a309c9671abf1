"""`longrow resume`: go on with a run from its newest whole checkpoint."""

import click

from jobs.entry import Job, Outcome, run


@click.command("resume", cls=Job)
@click.argument("run_name", metavar="RUN")
@click.option("--set", "sets", multiple=True, metavar="SECTION.KEY=VALUE", help="Changes to it.")
@click.option(
    "--reshard",
    is_flag=True,
    help="Let rows.rows and rows.segment change: documents in progress go first.",
)
def command(run_name: str, sets: tuple[str, ...], *, reshard: bool) -> Outcome:
    """Go on with a run from its newest whole checkpoint.

    RUN is a run's folder, or its name under runs/.
    """
    import os

    from jobs.begin import settle_init
    from jobs.config import given_keys
    from jobs.drive import drive, say
    from jobs.find import config_of, find_run
    from jobs.ours import check_addresses
    from jobs.prepare import build_and_drive, is_built
    from jobs.report import finish
    from trainer.errors import ConfigError

    folder = find_run(run_name)
    read = config_of(folder, sets=sets, environment=os.environ)
    check_addresses(read, folder, given=given_keys(sets, os.environ))
    read = settle_init(read, say=say)
    if read.data.train_while_building and not is_built(read):
        if reshard:
            raise ConfigError(
                "--reshard deals all documents anew, and the store is still to be built: let "
                "`longrow resume` without it go on with the build first."
            )
        return finish(read, build_and_drive(read, read.data.inputs, resume="must"))
    return finish(read, drive(read, resume="must", reshard=reshard))


if __name__ == "__main__":
    run(command)
