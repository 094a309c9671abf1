"""Write a config as TOML; the standard library only reads it."""

import json
from collections.abc import Mapping
from typing import Any


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Write sections of plain values; None has no form in TOML and is left out.

    Args:
        tables: Section -> key -> bool, int, float, str, or a list or table of these.
    """
    return "\n".join(
        f"[{section}]\n"
        + "".join(f"{key} = {_value(value)}\n" for key, value in table.items() if value is not None)
        for section, table in tables.items()
    )


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # Python's nan, inf and 1e-08 are TOML's too
    if isinstance(value, str):
        # JSON's escapes are TOML's; DEL alone is bare in one and forbidden in the other.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + "}"
    raise TypeError(f"{value!r} is a {type(value).__name__}, which a config does not hold.")
