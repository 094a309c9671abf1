"""The run in MLflow: one run across all restarts, one writer, and the only file that knows MLflow.

The driver hands things in and never waits: a thread sends them. What MLflow does not take is tried
again and told; the training does not wait for it, and metrics.jsonl in the run folder stays the
truth, from which a later start fills in what is missing.
"""

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    RunTag,
)
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

BATCH = 900  # MLflow takes at most 1,000 metrics a call
PERIOD_S = 2.0
CLOSE_S = 60.0
PARAM_CHARS = 500
STATUS = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED", "gave up": "FAILED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusInput:
    """What MLflow is told about the documents of a split.

    Attributes:
        name: For a person.
        digest: Of the store; MLflow takes 36 characters.
        source: Where the store is.
        split: "train" or "validation".
        profile: Counts: documents, tokens.
    """

    name: str
    digest: str
    source: str
    split: str
    profile: dict[str, int]


def default_uri(runs: Path) -> str:
    """The SQLite file beside the runs."""
    return f"sqlite:///{(runs / 'mlflow.db').resolve()}"


class Tracker:
    """Sends a run to MLflow from a thread of its own.

    Attributes:
        run_id: The MLflow run.
    """

    def __init__(self, client: MlflowClient, run_id: str, *, warn: Callable[[str], None]) -> None:
        self.run_id = run_id
        self._client = client
        self._warn = warn
        self._acts: deque[Callable[[], object]] = deque()
        self._metrics: deque[Metric] = deque()
        self._newest: dict[str, int] = {}
        self._warned = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send, name="mlflow", daemon=True)

    @classmethod
    def start(
        cls,
        *,
        uri: str,
        experiment: str,
        artifacts: str | None,
        run_id: str,
        name: str,
        params: dict[str, str],
        tags: dict[str, str],
        warn: Callable[[str], None],
    ) -> "Tracker":
        """Go on with MLflow run `run_id`, or begin one where that is empty.

        Args:
            uri: MLflow's tracking address.
            experiment: Made where there is none of this name.
            artifacts: Where a new experiment keeps its files; None leaves it to the server.
            run_id: The run to go on with.
            name: Of a new run.
            params: Logged once, when the run is new.
            tags: Set at every start.
            warn: Takes a sentence for a person.

        Raises:
            MlflowException: MLflow cannot be reached.
        """
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        client = MlflowClient(tracking_uri=uri)
        if not run_id:
            found = client.get_experiment_by_name(experiment)
            experiment_id = (
                found.experiment_id
                if found
                else client.create_experiment(experiment, artifact_location=artifacts)
            )
            run_id = client.create_run(experiment_id, run_name=name).info.run_id
            client.log_batch(
                run_id, params=[Param(key, value[:PARAM_CHARS]) for key, value in params.items()]
            )
        client.update_run(run_id, status="RUNNING")
        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
        tracker = cls(client, run_id, warn=warn)
        tracker._begin()
        return tracker

    def _begin(self) -> None:
        for kind, key in (("step", "train/loss"), ("evaluation", "eval/loss")):
            history = self._client.get_metric_history(self.run_id, key)
            self._newest[kind] = max((metric.step for metric in history), default=-1)
        self._thread.start()

    def line(self, line: dict[str, Any]) -> None:
        """Log a metric line; a step that MLflow holds already is left out."""
        if line["step"] <= self._newest.get(line["kind"], -1):
            return
        self._newest[line["kind"]] = line["step"]
        now = int(time.time() * 1000)
        metrics = [
            Metric(key, float(value), now, line["step"])
            for key, value in line.items()
            if "/" in key and isinstance(value, int | float)
        ]
        self._metrics.extend(metrics)

    def file(self, path: Path, folder: str | None = None) -> None:
        """Log a file as an artifact."""
        self._acts.append(lambda: self._client.log_artifact(self.run_id, str(path), folder))

    def tag(self, key: str, value: str) -> None:
        """Set a tag."""
        self._acts.append(lambda: self._client.set_tag(self.run_id, key, value))

    def table(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        """Log rows as a table that the run's page shows."""
        columns: dict[str, list[Any]] = {}
        for row in rows:
            for key, value in row.items():
                columns.setdefault(key, []).append(value)
        self._acts.append(lambda: self._client.log_table(self.run_id, columns, name))

    def datasets(self, inputs: Iterable[CorpusInput]) -> None:
        """Log the store's splits as the run's inputs."""
        entries = [
            DatasetInput(
                dataset=Dataset(
                    name=given.name,
                    digest=given.digest[:36],
                    source_type="local",
                    source=json.dumps({"uri": given.source}),
                    profile=json.dumps(given.profile),
                ),
                tags=[InputTag("mlflow.data.context", given.split)],
            )
            for given in inputs
        ]
        self._acts.append(lambda: self._client.log_inputs(self.run_id, datasets=entries))

    def checkpoint(self, *, name: str, step: int, uri: str, metrics: dict[str, float]) -> None:
        """Log a checkpoint as a model of the run: where it is, its step and its scores."""
        self._acts.append(lambda: self._log_checkpoint(name, step, uri, metrics))

    def _log_checkpoint(self, name: str, step: int, uri: str, metrics: dict[str, float]) -> None:
        experiment_id = self._client.get_run(self.run_id).info.experiment_id
        model = self._client.create_logged_model(
            experiment_id,
            name=name,
            source_run_id=self.run_id,
            tags={"longrow.uri": uri},
            params={"step": str(step)},
            model_type="longrow-checkpoint",
        )
        self._client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        self._client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step)])
        for key, value in metrics.items():
            self._client.log_metric(self.run_id, key, value, step=step, model_id=model.model_id)

    def close(self, status: str) -> None:
        """Send what is left and set the run's status.

        Args:
            status: A verdict's, or "crashed".
        """
        end = STATUS.get(status, "FAILED")
        self._acts.append(lambda: self._client.set_terminated(self.run_id, end))
        self._closing.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._warn(
                f"MLflow did not take everything in {CLOSE_S:.0f} s. The run's metrics.jsonl has "
                "all of it; `longrow resume` on this run sends what is missing."
            )

    def _send(self) -> None:
        """The thread: every few seconds send what has come, until all is sent and we close."""
        while True:
            closing = self._closing.wait(PERIOD_S)
            if self._send_all() and closing:
                return

    def _send_all(self) -> bool:
        """Whether everything was taken; what was not stays, in order, for the next time."""
        try:
            while self._metrics:
                batch = [self._metrics[i] for i in range(min(BATCH, len(self._metrics)))]
                self._client.log_batch(self.run_id, metrics=batch)
                for _ in batch:
                    self._metrics.popleft()
            while self._acts:
                self._acts[0]()
                self._acts.popleft()
        except (MlflowException, OSError) as error:
            self._tell(error)
            return False
        return not self._metrics

    def _tell(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"MLflow does not answer ({str(error).splitlines()[0][:160]}). Training goes on; "
                "what is missing there is kept and sent later."
            )
