"""A folder of weights that commands write: whole under its name, or not there at all."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import click


def check_free(out: Path) -> None:
    """Refuse a name that is taken, before any work.

    Raises:
        click.UsageError: Something lies there, or its parent is a file.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise click.UsageError(f"{out} is there already. Name a folder that is not there yet.")
    first = next(parent for parent in out.resolve().parents if parent.exists())
    if not first.is_dir():
        raise click.UsageError(f"{out} cannot be made: {first} is a file. Name another folder.")


def write_folder(out: Path, fill: Callable[[Path], None]) -> None:
    """Make `out` with what `fill` writes into the folder it is given."""
    check_free(out)
    draft = out.resolve().with_name(f".{out.name}.{os.getpid()}")
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.mkdir()
    try:
        fill(draft)
        if out.exists():
            out.rmdir()  # empty
        draft.rename(out.resolve())
    except BaseException:
        shutil.rmtree(draft)
        raise
