"""What a run's config says of places, and which of them no job on a cluster could find again.

A job runs in a folder that Ray makes for it on each node and removes afterwards: a relative path
means nothing there before the job, and is gone after it. Absolute paths are those of the nodes (a
folder that all of them share), and URLs are the same everywhere.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from jobs.config import RunConfig
from jobs.track import OFF
from trainer.errors import ConfigError

JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # in the environment of a Ray job's driver
SQLITE, FILE, MEMORY = "sqlite:///", "file://", "memory://"


def check_seen_by_all(config: RunConfig) -> dict[str, str]:
    """The places that every node must see under one name, by their key.

    Raises:
        ConfigError: Some lie where only this machine, or none, would look; a line for each.
    """
    found = dict(places(config))
    wrong = {key: place for key, place in found.items() if not _is_shared(place)}
    if wrong:
        lines = "".join(f"\n  {key} = {json.dumps(place)}" for key, place in wrong.items())
        raise ConfigError(
            "A job runs on the cluster's nodes, in a folder that is removed after it. It would not "
            f"find there, or not keep, what lies at:{lines}\nName an absolute path that all nodes "
            f"share, or a URL: in the file, or by --set {next(iter(wrong))}=..."
        )
    return found


def places(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Every place that the run reads from or writes to, by its key; data.cache is each node's."""
    yield "run.folder", config.run.folder
    one = {"run.init": config.run.init, "data.store": config.data.store}
    one |= {"data.tokenizer": config.data.tokenizer}
    one |= {f"data.inputs[{k}]": text for k, text in enumerate(config.data.inputs)}
    one |= {f"data.mixture[{k}].store": each.store for k, each in enumerate(config.data.mixture)}
    yield from ((key, place) for key, place in one.items() if place)
    if config.tracking.uri and config.tracking.uri != OFF:
        yield "tracking.uri", config.tracking.uri


def _is_shared(place: str) -> bool:
    if place.startswith(MEMORY):
        return False
    for scheme in (SQLITE, FILE):
        if place.startswith(scheme):
            return place.removeprefix(scheme).startswith("/")
    return "://" in place or PurePosixPath(place.removeprefix("@")).is_absolute()


def check_outlives_the_job(config: RunConfig, environment: Mapping[str, str]) -> None:
    """Refuse to put a run into the folder that Ray made for this job alone.

    Raises:
        ConfigError: It would be removed with it.
    """
    told = json.loads(environment.get(JOB) or "{}")
    if (told.get("runtime_env") or {}).get("working_dir") and not _is_shared(config.run.folder):
        raise ConfigError(
            f"run.folder = {json.dumps(config.run.folder)} lies in the folder that Ray made for "
            "this job on one node and removes after it, checkpoints and all. Name an absolute path "
            "that all nodes share: --set run.folder=/shared/runs."
        )
