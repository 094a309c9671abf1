"""`longrow resume`: go on with a run from its newest whole checkpoint."""

import click

from jobs.entry import Job, Outcome, run


@click.command("resume", cls=Job)
@click.argument("run_name", metavar="RUN")
@click.option("--set", "sets", multiple=True, metavar="SECTION.KEY=VALUE", help="Changes to it.")
def command(run_name: str, sets: tuple[str, ...]) -> Outcome:
    """Go on with a run from its newest whole checkpoint.

    RUN is a run's folder, or its name under runs/.
    """
    import os

    from jobs.begin import settle_init
    from jobs.drive import drive, say
    from jobs.find import config_of, find_run
    from jobs.report import finish

    folder = find_run(run_name)
    read = settle_init(config_of(folder, sets=sets, environment=os.environ), say=say)
    return finish(read, drive(read, resume="must"))


if __name__ == "__main__":
    run(command)
