"""What a run begins with: the weights that `--init` names, once, and never a second time."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from jobs.config import RunConfig
from jobs.drive import folder_of
from jobs.find import find_weights
from pipeline.files import local_path
from trainer.errors import ConfigError


def settle_init(config: RunConfig, *, say: Callable[[str], None]) -> RunConfig:
    """The config with `run.init` as an absolute path, or as the run that is there began.

    A run's weights are begun with once. So that a run which died before its first checkpoint does
    not begin otherwise the second time, what its config.json says holds.

    Args:
        config: The run as it is asked for.
        say: Takes a sentence for a person.

    Raises:
        ConfigError: Nothing lies there, or the run is there already and began otherwise.
        CheckpointError: The checkpoint that was named is damaged.
    """
    wanted = config.run.init
    if local_path(wanted) is None:
        raise ConfigError(
            f"run.init = {wanted!r} is a URL, and every later start of the run wants these weights "
            "in a folder: write one with `longrow export`, and name that."
        )
    folder = folder_of(config)
    held = folder.read_json("config.json")
    if held is None:
        return _with_init(config, str(find_weights(wanted))) if wanted else config
    known = str(held.get("run", {}).get("init", ""))
    if wanted and not _names(wanted, known):
        raise ConfigError(
            f"{folder.place} holds a run already, which began with "
            f"{known or 'weights drawn from its seed'}: --init {json.dumps(wanted)} would count "
            "for nothing. Give the new run another run.name, or leave --init out to go on with "
            "this one."
        )
    if wanted:
        say(f"{folder.place} goes on with its own weights; it began with those of {known}.")
    return _with_init(config, known)


def _names(wanted: str, known: str) -> bool:
    """Whether the word names the weights `known`, or the run that they are a checkpoint of."""
    if not known:
        return False
    path = Path(wanted).resolve()
    return Path(known) == path or path in Path(known).parents or Path(known) == _found(wanted)


def _found(wanted: str) -> Path | None:
    try:
        return find_weights(wanted)
    except ValueError:  # it may be gone: the run does not need it any more
        return None


def _with_init(config: RunConfig, init: str) -> RunConfig:
    return replace(config, run=replace(config.run, init=init))
