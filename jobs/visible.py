"""What a person's screen is told: what would command the screen is spelled out.

Names, texts and settings come from corpora, models and run folders of others. `echo` is the one
way to the screen of every command, so that none of them has to be thought of.
"""

import re

import click

# Control characters but line ends and tab, and what turns the direction of writing around: a
# text could clear the screen, set its title, or show itself as another.
_COMMANDS = re.compile("\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with such characters as `\x1b`; `--json` has them as they are."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def echo(text: object = "", *, err: bool = False, nl: bool = True, bold: bool = False) -> None:
    """Say `text`, made visible, on standard output; on standard error with `err`."""
    shown = visible(str(text))
    click.echo(click.style(shown, bold=True) if bold else shown, err=err, nl=nl)
