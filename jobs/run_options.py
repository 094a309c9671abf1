"""What is told alike to the commands that start a run: its file, changes, whether it may go on."""

from pathlib import Path

import click

config_argument = click.argument("config", type=click.Path(path_type=Path))
set_option = click.option(
    "--set", "sets", multiple=True, metavar="SECTION.KEY=VALUE", help="Over the file."
)
resume_option = click.option(
    "--resume",
    type=click.Choice(["auto", "never", "must"]),
    default="auto",
    show_default=True,
    help="Go on with the run of this name where there is one.",
)
