"""`python -m jobs.config_doc`: write docs/config.md from the config classes, key by key.

Name, type and default are the field's; the sentence is that of the class's docstring; what a value
must be is said by the class itself, which is asked with values that it may refuse. A key without a
sentence is an error: nobody would know what it is.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from jobs.config import ENVIRONMENT_PREFIX, FOLLOWS, sections
from jobs.entry import Job, Outcome, run
from jobs.options import attributes
from jobs.toml import to_toml
from jobs.visible import echo
from pipeline.files import write_whole
from trainer.errors import ConfigError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "config.md"
NAMES = {int: "integer", float: "number", str: "text", bool: "true or false"}
# Values that a field of the type may refuse, and then says why.
PROBES: dict[Any, tuple[Any, ...]] = {
    int: (-1, 0, 1, 2, 2**80),
    float: (-1.0, 0.0, 0.5, 1.0, 2.0, math.inf),
    str: ("", ".", "a b\0"),
}
HEAD = """# Every key of a run's config

Written by `python -m jobs.config_doc` from the config classes; a test holds it current. A run's
TOML file names what differs from the defaults; the environment variable `{prefix}SECTION__KEY` goes
over it, `--set section.key=value` over both. An unknown key is refused with the nearest known one.
"""


@click.command("config-doc", cls=Job)
def command() -> Outcome:
    """Write docs/config.md anew."""
    text = page()
    write_whole(str(PAGE), text.encode())
    echo(f"{PAGE} is written.")
    return Outcome(facts={"path": str(PAGE), "keys": text.count("\n| `")})


def page() -> str:
    """The page as Markdown.

    Raises:
        ConfigError: A key has no sentence; all such keys are named.
    """
    missing: list[str] = []
    parts = [HEAD.format(prefix=ENVIRONMENT_PREFIX)]
    for section, kind in sections().items():
        first = (kind.__doc__ or "").strip().partition("\n")[0]
        table = "".join(
            f"| `{key}` | {kind_of} | {default} | {limits} | {sentence} |\n"
            for key, kind_of, default, limits, sentence in rows(section, kind, missing)
        )
        columns = "| key | type | default | must | what it is |\n|---|---|---|---|---|\n"
        parts.append(f"## [{section}]\n\n{first}\n\n{columns}{table}")
    if missing:
        raise ConfigError(
            f"No sentence says what {', '.join(missing)} is. Write one under `Attributes:` in the "
            "docstring of its class."
        )
    return "\n".join(parts)


def rows(section: str, kind: Any, missing: list[str]) -> Iterator[tuple[str, str, str, str, str]]:
    """The cells of each key of a section; keys without a sentence go to `missing`."""
    told: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        told |= attributes(base)
    hints = get_type_hints(kind)
    for field in fields(kind):
        key = f"{section}.{field.name}"
        if not told.get(field.name):
            missing.append(key)
        default = _toml(field.default)
        if key in FOLLOWS:
            default = f"that of `{FOLLOWS[key]}`"
        yield (
            field.name,
            _type(hints[field.name]),
            default,
            _cell("; ".join(limits(section, kind, field.name, hints[field.name]))),
            _cell(told.get(field.name, "")),
        )


def limits(section: str, kind: Any, name: str, hint: Any) -> list[str]:
    """What the class says to values that it refuses, without the values."""
    said: list[str] = []
    for value in _probes(hint):
        try:
            kind(**{name: value})
        except (ValueError, TypeError) as error:
            lines = str(error).replace(f"{section}.{name}", name).splitlines()
            found = re.match(rf"{name} (?:= .*?|holds .*?)?must (.+?)(?:\.$|\. |: |$)", lines[0])
            if found:
                said.append(found[1].strip())
    return list(dict.fromkeys(said))


def _probes(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is tuple:
        inner, *others = get_args(hint)
        many = 1 if others == [...] else 1 + len(others)
        yield from ((value,) * many for value in PROBES.get(inner, ()))
    else:
        yield from PROBES.get(hint, ())


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(f"`{_bare(value)}`" for value in get_args(hint))
    if get_origin(hint) is tuple:
        inner, *others = get_args(hint)
        many = "list of" if others == [...] else f"list of {1 + len(others)}"
        return f"{many} {_type(inner)}s" if inner in (int, float) else f"{many} {_type(inner)}"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_type(one) for one in get_args(hint) if one is not NoneType)
    return NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _toml(value: Any) -> str:
    return f"`{_bare(value)}`"


def _bare(value: Any) -> str:
    return to_toml({"x": {"y": value}}).partition(" = ")[2].strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    run(command)
