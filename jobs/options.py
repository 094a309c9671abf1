"""A settings class as options of a command: one source for name, type, default and help."""

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click


def settings_options(kind: type, *, without: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Give a command an option for each field of `kind`, in order.

    Args:
        kind: A dataclass whose docstring has a line `name: What it is.` under `Attributes:`.
        without: Fields that the command sets itself.
    """
    hints = get_type_hints(kind)
    told = attributes(kind)
    options = [
        click.option(
            f"--{field.name.replace('_', '-')}",
            field.name,
            type=_type(hints[field.name]),
            multiple=get_origin(hints[field.name]) is tuple,
            default=field.default,
            show_default=True,
            help=told.get(field.name),
        )
        for field in fields(kind)
        if field.name not in without
    ]

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def attributes(kind: type) -> dict[str, str]:
    """What a class's docstring says of its attributes: name -> one line of text."""
    _, _, listed = (kind.__doc__ or "").partition("Attributes:\n")
    block = listed.partition("\n\n")[0]
    indent = len(block) - len(block.lstrip(" "))
    entries = re.split(rf"^ {{{indent}}}(?=\w)", block, flags=re.MULTILINE)
    pairs = (" ".join(entry.split()).partition(": ") for entry in entries if entry.strip())
    return {name: text.replace("`", "") for name, _, text in pairs}


def _type(hint: Any) -> Any:
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    return get_args(hint)[0] if get_origin(hint) is tuple else hint
