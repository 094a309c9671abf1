"""Where a run is recorded: in MLflow, or nowhere but its folder (tracking.uri = "off")."""

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config import RunConfig
from pipeline.growing import GrowingStore
from pipeline.mixture import Mixture
from pipeline.settings import BuildSettings
from pipeline.store import Store
from trainer.checkpoint import checkpoints, step_of
from trainer.errors import ConfigError
from trainer.remote_run import RemoteRun
from trainer.run_folder import MLFLOW, RunFolder
from trainer.settings import check_no_credentials

if TYPE_CHECKING:
    from jobs.describe_run import Corpus
    from trainer.tracking import Tracker

OFF = "off"
AT_ONCE_S = 2.0  # that MLflow is given when a person does not want to wait


class Track:
    """A tracker, or none: the run does not care."""

    def __init__(self, tracker: "Tracker | None") -> None:
        self._tracker = tracker

    @property
    def run_id(self) -> str:
        """The MLflow run; empty where there is none."""
        return self._tracker.run_id if self._tracker else ""

    def line(self, line: dict[str, Any]) -> None:
        if self._tracker:
            self._tracker.line(line)

    def checkpoint(self, folder: RunFolder, path: Path, step: int) -> None:
        if self._tracker:
            self._tracker.checkpoint(name=path.name, step=step, uri=folder.named(str(path)))

    def file(self, path: Path, folder: str | None = None) -> None:
        if self._tracker:
            self._tracker.file(path, folder)

    def samples(self, rows: list[dict[str, Any]], *, step: int) -> None:
        if self._tracker:
            self._tracker.table(f"samples/step_{step:08d}.json", rows)

    def ended(self, how: str) -> None:
        """Say in a sentence how the run ended, or that it is done."""
        if self._tracker:
            self._tracker.tag("longrow.ended", how)

    def close(self, status: str, *, at_once: bool = False) -> None:
        if self._tracker and at_once:
            self._tracker.close(status, wait_s=AT_ONCE_S)
        elif self._tracker:
            self._tracker.close(status)


def track(
    config: RunConfig,
    folder: RunFolder,
    store: Store | GrowingStore,
    *,
    changed: Mapping[str, str],
    warn: Callable[[str], None],
) -> Track:
    """Begin to record the run, or go on with the record it has.

    Args:
        config: The run.
        folder: Its folder, where mlflow.json remembers the record.
        store: What it reads.
        changed: Settings that changed at this resume; tags, for MLflow's parameters stay as begun.
        warn: Takes a sentence for a person.

    Raises:
        ConfigError: MLflow cannot be reached.
    """
    uri = uri_of(config, folder)
    # Of several ranks that torchrun started the first one alone records.
    if uri == OFF or (config.cluster.launcher == "local" and os.environ.get("RANK", "0") != "0"):
        return Track(None)
    from jobs.describe_run import count_weights, describe, tags_of
    from trainer.mlflow_run import TrackedRun
    from trainer.tracking import CorpusInput, Tracker

    corpora = _corpora(store)
    weights = count_weights(replace(config.model, vocab_size=store.vocab_size))
    known = folder.record()
    if known.get("uri") != uri:
        known = {"run_id": "", "uri": uri, "key": secrets.token_hex(8)}
        folder.write_json(MLFLOW, known)  # first: a run that is made and forgotten runs on
    run_id = known["run_id"]
    run = TrackedRun(
        experiment=config.tracking.experiment,
        artifacts=(_beside(uri, folder) / "mlartifacts").as_uri()
        if uri.startswith("sqlite:")
        else None,
        name=config.run.name,
        description=describe(
            config,
            folder.place,
            corpora,
            weights=weights,
            building=isinstance(store, GrowingStore),
        ),
        params=_params(config),
        tags=tags_of(config, corpora, weights=weights)
        | {
            "longrow.run": config.run.name,
            "longrow.ended": "",  # of an earlier start
            "longrow.folder": folder.place,
            "longrow.store_fingerprint": store.fingerprint,
            "longrow.tokenizer_sha256": store.tokenizer_sha256,
            **_parent(config.run.init),
            **{f"longrow.changed.{key}": change for key, change in changed.items()},
        },
        key=known.get("key", ""),  # versions before this one wrote none
    )
    tracker = Tracker.start(uri, run, run_id=run_id, warn=warn, counts=folder.counts)
    if tracker.run_id != run_id:
        folder.write_json(MLFLOW, known | {"run_id": tracker.run_id})
    # At every start, for an earlier one may have been killed too soon; what is there stays.
    tracker.datasets(
        CorpusInput(
            # MLflow takes an input of a name and a digest once: both splits have one digest.
            name=f"{one.name}, held out" if one.split == "validation" else one.name,
            digest=one.fingerprint,
            source=one.url,
            split=one.split,
            profile={"documents": one.documents, "tokens": one.tokens},
        )
        for one in corpora
    )
    tracker.text("config.toml", config.to_toml())
    tracker.bytes("tokenizer.model", store.tokenizer().model_bytes)
    for path in checkpoints(folder.checkpoints):  # what an earlier start could not send
        tracker.checkpoint(name=path.name, step=step_of(path), uri=folder.named(str(path)))
    return Track(tracker)


def _params(config: RunConfig) -> dict[str, str]:
    """The config by dotted key, without what says nothing of a store that was built elsewhere."""
    told = _flat(config.to_dict())
    if config.data.inputs:
        return told
    of_builds = {"workers", "tokenizer", *(field.name for field in fields(BuildSettings))}
    return {
        key: value
        for key, value in told.items()
        if not (key.startswith("tokenizer.") or key.removeprefix("data.") in of_builds)
    }


def _parent(init: str) -> dict[str, str]:
    """Tags of the run whose weights this one began with; MLflow shows it below that one."""
    if not init or not Path(init).is_dir():
        return {}
    from trainer.load import parent_of

    parent = parent_of(Path(init))
    tags = {"longrow.parent_run": parent.run, "longrow.parent_step": str(parent.step)}
    return tags | ({"mlflow.parentRunId": parent.mlflow_run_id} if parent.mlflow_run_id else {})


def uri_of(config: RunConfig, folder: RunFolder) -> str:
    """MLflow's address for the run: its config's, the environment's, or a file beside the runs.

    Raises:
        ConfigError: None is given, and the runs lie where no database file can.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    check_no_credentials("MLFLOW_TRACKING_URI", given)
    if uri := config.tracking.uri or given:
        return uri
    if isinstance(folder, RemoteRun):
        raise ConfigError(
            f"The run {folder.place} lies on an object store, where MLflow's file cannot be. Set "
            "tracking.uri to an MLflow server, to a file here (sqlite:////path/mlflow.db), or to "
            '"off".'
        )
    return f"sqlite:///{folder.path.parent / 'mlflow.db'}"


def _beside(uri: str, folder: RunFolder) -> Path:
    """Where the files of a run lie whose record is in MLflow's own file."""
    if isinstance(folder, RemoteRun):
        return Path(uri.removeprefix("sqlite:///")).resolve().parent
    return folder.path.parent


def _corpora(store: Store | GrowingStore) -> "list[Corpus]":
    from jobs.describe_run import Corpus

    return [
        Corpus(
            name=Path(one.url).name,
            url=one.url,
            fingerprint=one.fingerprint,
            split=split,
            documents=len(one.doc_ids(split)),
            tokens=int(one.num_tokens(split).sum()),
        )
        for one in (store.stores if isinstance(store, Mixture) else (store,))
        for split in ("train", "validation")
    ]


def _flat(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Settings by their key, without those that name the run: they differ between any two."""
    return {
        f"{section}.{key}": str(value)
        for section, table in tables.items()
        for key, value in table.items()
        if (section, key) not in {("run", "name"), ("run", "folder")}
    }
