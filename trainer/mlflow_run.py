"""A run as MLflow holds it: begun, gone on with, and what is asked of its record by itself.

Each of these waits for MLflow's answer. What a run says while it trains goes another way, which
does not wait: tracking.py.
"""

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trainer.errors import ConfigError

# How MLflow says that its server does not answer, or not now, or not to us, or that the database is
# another's: no fault of what was sent.
AWAY = re.compile(
    r"failed with (timeout )?exception|error code (401|403|408|429|5\d\d)|"
    "OperationalError|DatabaseError|is locked"
)
# A server that hangs is given up soon: what it misses is sent again.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
MODEL_TYPE = "longrow-checkpoint"
KIND = "mlflow.experimentKind"  # which of MLflow's pages a person sees: those of training
NOTE = "mlflow.note.content"
KEY = "longrow.key"
PARAM_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What MLflow is told about a run.

    Attributes:
        experiment: Made where there is none of this name.
        artifacts: Where a new experiment keeps its files; None leaves it to the server.
        name: Of a new run.
        params: Logged once, when the run is new.
        tags: Set at every start.
        description: Of a new run, in Markdown; what a person makes of it stays.
        key: Of a new run, and known to its folder before MLflow has it: by this it is found again
            if its id was never written down.
    """

    experiment: str
    artifacts: str | None
    name: str
    params: dict[str, str]
    tags: dict[str, str]
    description: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What MLflow has of a run; the tracker adds what it sends.

    Attributes:
        steps: The time, in ms since 1970, that each step is logged with; under "step" that of
            the metrics of steps, and that of an evaluation's under their keys.
        scores: What the evaluation of a step found.
        models: By step: the logged models of its checkpoints, id by name.
        scored: Ids of those that know what they scored.
    """

    steps: dict[str, dict[int, int]]
    scores: dict[int, list[Metric]]
    models: dict[int, dict[str, str]]
    scored: set[str]


def client_of(uri: str) -> MlflowClient:
    """A client of MLflow's that has little patience and says nothing itself."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # not how it makes its tables
    # Nor a traceback each time that a database is locked or gone: it raises too, and we tell.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return MlflowClient(tracking_uri=uri)


def known_run(client: MlflowClient, run_id: str) -> str:
    """The id of a run that MLflow holds; empty if its database was lost or emptied since."""
    try:
        return client.get_run(run_id).info.run_id
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return ""


def begin(client: MlflowClient, run: TrackedRun) -> str:
    """A new MLflow run, or the one that an earlier start made and did not come to write down."""
    found = client.get_experiment_by_name(run.experiment)
    experiment_id = (
        found.experiment_id
        if found
        else client.create_experiment(run.experiment, artifact_location=run.artifacts)
    )
    if not found or KIND not in found.tags:
        client.set_experiment_tag(experiment_id, KIND, "custom_model_development")
    if run.key and (begun := _run_of(client, run.key, [experiment_id])):
        return begun
    return client.create_run(
        experiment_id, run_name=run.name, tags={KEY: run.key} if run.key else None
    ).info.run_id


def _run_of(client: MlflowClient, key: str, experiment_ids: list[str]) -> str:
    """The id of the run that has this key; empty if there is none."""
    found = client.search_runs(experiment_ids, f"tags.`{KEY}` = '{key}'", max_results=1)
    return found[0].info.run_id if found else ""


def go_on(client: MlflowClient, run_id: str, told: TrackedRun) -> Held:
    """Say that the run goes on, with what is missing of its beginning; look at what MLflow has."""
    client.update_run(run_id, status="RUNNING")
    run = client.get_run(run_id)
    _check_artifacts(client.tracking_uri, run.info.artifact_uri)
    experiment_id = run.info.experiment_id
    params = {key: value for key, value in told.params.items() if key not in run.data.params}
    tags = {**told.tags} if NOTE in run.data.tags else {**told.tags, NOTE: told.description}
    client.log_batch(
        run_id,
        params=[Param(key, value[:PARAM_CHARS]) for key, value in params.items()],
        tags=[RunTag(key, value) for key, value in tags.items()],
    )
    held = Held(
        steps={
            kind: {one.step: one.timestamp for one in client.get_metric_history(run_id, key)}
            for kind, key in [
                ("step", "train/step_seconds"),
                *((key, key) for key in run.data.metrics if key.startswith("eval/")),
            ]
        },
        scores={},
        models={},
        scored=set(),
    )
    token = None
    while True:
        page = client.search_logged_models(
            [experiment_id], filter_string=f"source_run_id = '{run_id}'", page_token=token
        )
        for model in page:
            if model.model_type == MODEL_TYPE:
                held.models.setdefault(int(model.params["step"]), {})[model.name] = model.model_id
                if model.metrics:
                    held.scored.add(model.model_id)
        token = page.token
        if not token:
            return held


def end_if_running(uri: str, run_id: str, *, key: str = "", status: str = "KILLED") -> bool:
    """Set a run that is RUNNING to `status`; whether it was.

    Args:
        uri: MLflow's tracking address.
        run_id: The run; empty where its start did not come to write it down.
        key: Finds it then; MLflow may have no such run at all.
        status: What it is to be.

    Raises:
        ConfigError: MLflow cannot be reached there, or does not know the run.
    """
    try:
        if not run_id and _is_missing(uri):  # it was never begun
            return False
        client = _recorded(uri, run_id) if run_id else client_of(uri)
        if not run_id:
            everywhere = [one.experiment_id for one in client.search_experiments()]
            run_id = _run_of(client, key, everywhere)
        if not run_id or client.get_run(run_id).info.status != "RUNNING":
            return False
        client.set_terminated(run_id, status)
    except ConfigError:
        raise
    except Exception as error:  # a database that is damaged or full says so in many ways
        raise ConfigError(
            f"MLflow at {uri} cannot be used for run {run_id} ({first_line(error)[:160]}). "
            "Start its server, or put its file back, and try again."
        ) from error
    return True


def add_to_run(
    uri: str,
    run_id: str,
    *,
    files: Iterable[Path],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    """Add pictures and tables to a run that exists; its status and metrics stay as they are.

    A table that is there already is left alone, for MLflow would append to it.

    Args:
        uri: MLflow's tracking address.
        run_id: The run.
        files: Pictures.
        tables: Rows by the name of the artifact.

    Raises:
        ConfigError: MLflow cannot be reached there, or does not know the run.
    """
    try:
        client = _recorded(uri, run_id)
        _check_artifacts(uri, client.get_run(run_id).info.artifact_uri)
        for file in files:
            client.log_artifact(run_id, str(file), "pictures")
        for name, rows in tables.items():
            there = {found.path for found in client.list_artifacts(run_id, str(Path(name).parent))}
            if name not in there:
                columns = {key: [row[key] for row in rows] for key in rows[0]}
                client.log_table(run_id, columns, name)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"MLflow at {uri} did not take it ({first_line(error)[:160]}). Start its server, or "
            "put its file back, and evaluate again; the run's folder has everything all the same."
        ) from error


def _recorded(uri: str, run_id: str) -> MlflowClient:
    """A client of the MLflow that has run `run_id`.

    Raises:
        ConfigError: It has it no more.
    """
    again = f"Put it back; without it, `longrow resume` of run {run_id} begins another record."
    if _is_missing(uri):
        raise ConfigError(f"MLflow's file {_file(uri)} is not there any more. {again}")
    client = client_of(uri)
    if not known_run(client, run_id):
        raise ConfigError(f"MLflow at {uri} has lost what it had of this run. {again}")
    return client


def _file(uri: str) -> Path:
    return Path(uri.removeprefix("sqlite:///").partition("?")[0])


def _is_missing(uri: str) -> bool:
    """Whether MLflow's own file is not there; asked for anything, MLflow would make one."""
    return uri.startswith("sqlite:///") and not _file(uri).is_file()


def _check_artifacts(uri: str, artifacts: str | None) -> None:
    """Take no server from a file, which may be a stranger's: MLflow would send it our password.

    Raises:
        ConfigError: The file names one.
    """
    if uri.startswith("sqlite:") and (artifacts or "").startswith(("http:", "https:", "dbfs:")):
        raise ConfigError(
            f"{uri} has the run's artifacts at {artifacts}, and a server is taken from the "
            "environment alone, for it gets what opens it. Set MLFLOW_TRACKING_URI to the server."
        )


def is_away(error: Exception) -> bool:
    """Whether MLflow could not be reached, and what was sent may be right."""
    return isinstance(error, OSError) or AWAY.search(str(error)) is not None


def first_line(error: Exception) -> str:
    """What an error says first: MLflow's own go on with pages of SQL."""
    return next(iter(str(error).splitlines()), type(error).__name__)
