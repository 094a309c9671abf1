"""What a run says to MLflow while it trains: one run across all restarts, and one writer.

The driver hands things in and never waits: a thread sends them. What MLflow does not take is tried
again and told; the training does not wait for it, and metrics.jsonl in the run folder stays the
truth, from which a later start fills in what is missing.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
)
from mlflow.tracking import MlflowClient

from pipeline.errors import DataError
from trainer.errors import ConfigError
from trainer.mlflow_run import (
    MODEL_TYPE,
    Held,
    TrackedRun,
    begin,
    client_of,
    first_line,
    go_on,
    is_away,
    known_run,
)
from trainer.temp_folder import temp_folder

LINES = 30  # a call; MLflow takes at most 1,000 metrics in one
TRIES = 3  # of one thing, before it is told and left out
PERIOD_S = 2.0
CLOSE_S = 60.0
ANSWER_S = 10.0  # that a server may take to say whether it knows a run; its first step waits for it
TAG_CHARS = 4_000
# How a verdict stands in MLflow. Of an overtaken run the status is another process's to set.
STATUS = {
    "overtaken": "",
    "done": "FINISHED",
    "stopped": "KILLED",
    "failed": "FAILED",
    "gave up": "FAILED",
}


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


class Tracker:
    """Sends a run to MLflow from a thread of its own.

    Attributes:
        run_id: The MLflow run.
    """

    def __init__(
        self,
        connect: Callable[[], MlflowClient],
        run_id: str,
        run: TrackedRun,
        *,
        held: Held | None,
        warn: Callable[[str], None],
        counts: Callable[[dict[str, Any]], bool] = lambda _line: True,
    ) -> None:
        """Begin to send; `held` is what MLflow has already, None if that is still to be asked.

        `connect` is called when something is sent: a file that is locked cannot even be opened.
        """
        self.run_id = run_id
        self._connect = connect
        self._run = run
        self._warn = warn
        self._counts = counts
        self._lines: deque[tuple[dict[str, Any], int]] = deque()  # with the time they came at
        self._acts: deque[Callable[[], object]] = deque()
        self._metrics: deque[list[Metric]] = deque()  # a line's belong together
        self._held = held or Held(steps={}, scores={}, models={}, scored=set())
        self._connected = held is not None
        self._warned = False
        self._overtaken = False
        self._tries = 0
        self._status = "FAILED"
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send, name="mlflow", daemon=True)
        self._thread.start()

    @cached_property
    def _client(self) -> MlflowClient:
        return self._connect()

    @classmethod
    def start(
        cls,
        uri: str,
        run: TrackedRun,
        *,
        run_id: str,
        warn: Callable[[str], None],
        counts: Callable[[dict[str, Any]], bool] = lambda _line: True,
    ) -> "Tracker":
        """Go on with MLflow run `run_id`, or begin `run` where that is empty.

        A run that is recorded already does not wait for its record: if MLflow is away now, what
        comes is kept until it is back.

        Args:
            uri: MLflow's tracking address.
            run: What MLflow is told about the run.
            run_id: The run to go on with.
            warn: Takes a sentence for a person.
            counts: Whether a line is still of the run when it is sent, and was not overtaken.

        Raises:
            ConfigError: A new run cannot be begun there.
        """
        connect = partial(client_of, uri)
        try:
            if run_id and _in_time(lambda: known_run(connect(), run_id), wait_s=ANSWER_S):
                # What MLflow has, the thread looks.
                return cls(connect, run_id, run, held=None, warn=warn, counts=counts)
            client = connect()
            run_id = begin(client, run)
            held = go_on(client, run_id, run)
        except ConfigError:
            raise
        except Exception as error:
            first = first_line(error)[:200]
            if run_id:
                warn(
                    f"MLflow at {uri} cannot be used now: {first}. Training begins all the same; "
                    "what comes is kept and sent later."
                )
                return cls(connect, run_id, run, held=None, warn=warn, counts=counts)
            raise ConfigError(  # a database that is locked or full says so in many ways
                f"MLflow at {uri} cannot be used: {first}. Start its server, correct "
                "tracking.uri, or leave it empty for a file beside the runs."
            ) from error
        return cls(connect, run_id, run, held=held, warn=warn, counts=counts)

    def line(self, line: dict[str, Any]) -> None:
        """Log a metric line; a step that MLflow holds already is left out."""
        # By the time it was written at MLflow knows a point that comes again, from whomever.
        self._lines.append((line, line.get("time") or int(time.time() * 1000)))

    def file(self, path: Path, folder: str | None = None) -> None:
        """Log a file as an artifact."""
        self._acts.append(lambda: self._client.log_artifact(self.run_id, str(path), folder))

    def text(self, name: str, text: str) -> None:
        """Log a text as an artifact, unless there is one of this name."""
        self._acts.append(
            lambda: self._holds(name) or self._client.log_text(self.run_id, text, name)
        )

    def tag(self, key: str, value: str) -> None:
        """Set a tag of the run; MLflow takes so many characters and no more."""
        self._acts.append(lambda: self._client.set_tag(self.run_id, key, value[:TAG_CHARS]))

    def bytes(self, name: str, data: bytes) -> None:
        """Log bytes as an artifact, unless there is one of this name."""

        def act() -> None:
            if self._holds(name):
                return
            with temp_folder() as folder:  # swept by a later start if this process is killed
                path = Path(folder) / name
                path.write_bytes(data)
                self._client.log_artifact(self.run_id, str(path))

        self._acts.append(act)

    def _holds(self, name: str) -> bool:
        return name in {file.path for file in self._client.list_artifacts(self.run_id)}

    def table(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        """Log rows as a table that the run's page shows."""
        columns: dict[str, list[Any]] = {}
        for row in rows:
            for key, value in row.items():
                columns.setdefault(key, []).append(value)
        self._acts.append(lambda: self._client.log_table(self.run_id, columns, name))

    def datasets(self, inputs: Iterable[CorpusInput]) -> None:
        """Log the store's splits as the run's inputs, unless it has some."""
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

        def act() -> None:
            known = self._client.get_run(self.run_id).inputs
            if known is None or not known.dataset_inputs:
                self._client.log_inputs(self.run_id, datasets=entries)

        self._acts.append(act)

    def checkpoint(self, *, name: str, step: int, uri: str) -> None:
        """Log a checkpoint as a model of the run: where it is, its step, what it scored.

        One that MLflow has already is left out.
        """
        self._acts.append(lambda: self._log_checkpoint(name, step, uri))

    def _log_checkpoint(self, name: str, step: int, uri: str) -> None:
        if name in self._held.models.get(step, {}):
            return
        experiment_id = self._client.get_run(self.run_id).info.experiment_id
        model = self._client.create_logged_model(
            experiment_id,
            name=name,
            source_run_id=self.run_id,
            tags={"longrow.uri": uri},
            params={"step": str(step)},
            model_type=MODEL_TYPE,
        )
        self._client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        self._client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step)])
        self._held.models.setdefault(step, {})[name] = model.model_id
        self._score(step)

    def _score(self, step: int) -> None:
        """Give the checkpoints of `step` what its evaluation found, once both are known."""
        found = self._held.scores.get(step, [])
        for model_id in self._held.models.get(step, {}).values():
            if found and model_id not in self._held.scored:
                # The same points, to the millisecond: the run itself gets none twice.
                points = [
                    Metric(one.key, one.value, one.timestamp, one.step, model_id=model_id)
                    for one in found
                ]
                self._client.log_batch(self.run_id, metrics=points)
                self._held.scored.add(model_id)

    def close(self, status: str, *, wait_s: float = CLOSE_S) -> None:
        """Send what is left and set the run's status; of an overtaken run neither.

        Args:
            status: A verdict's, "overtaken" or "crashed".
            wait_s: Seconds that MLflow is given for it.
        """
        self._status = STATUS.get(status, "FAILED")
        self._overtaken = status == "overtaken"
        self._closing.set()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._warn(
                f"MLflow did not take everything in {wait_s:.0f} s. The run's metrics.jsonl has "
                "all of it; `longrow resume` on this run sends what is missing."
            )

    def _send(self) -> None:
        """The thread: every few seconds send what has come, until all is sent and we close."""
        while True:
            closing = self._closing.wait(PERIOD_S)
            if self._send_all() and closing:
                return
            if closing:  # its event is set: do not hurry from one refusal to the next
                time.sleep(PERIOD_S)

    def _send_all(self) -> bool:
        """Whether all was taken; what was not stays, in order, for the next time."""
        if self._overtaken:
            return True
        try:
            if not self._connected:
                self._held = go_on(self._client, self.run_id, self._run)
                self._connected = True
        except Exception as error:  # noqa: BLE001 - whatever MLflow meets, the record goes on
            self._tell(error)
            return False
        if not self._take_lines() and not self._closing.is_set():
            return False  # else the run has its end all the same, and a resume sends them
        if not self._send_metrics():
            return False
        while self._acts and not self._overtaken:
            if not self._try(self._acts[0]):
                return False
            self._acts.popleft()
        if self._closing.is_set() and self._status:
            return self._try(lambda: self._client.set_terminated(self.run_id, self._status))
        return True

    def _take_lines(self) -> bool:
        """Whether the run's folder has said of all lines if they count."""
        while self._lines:
            line, now = self._lines[0]
            try:
                counts = self._counts(line)
            except (OSError, DataError) as error:
                self._tell(error, of_folder=True)
                return False
            self._lines.popleft()
            if counts:
                self._take(line, now)
        return True

    def _send_metrics(self) -> bool:
        while self._metrics and not self._overtaken:
            count = 1 if self._tries else LINES  # of many, to find the one that is refused
            lines = [self._metrics[i] for i in range(min(count, len(self._metrics)))]
            if not self._try(partial(self._log, [one for line in lines for one in line])):
                return False
            for _ in lines:
                self._metrics.popleft()
        return True

    def _log(self, metrics: list[Metric]) -> None:
        self._client.log_batch(self.run_id, metrics=metrics)

    def _take(self, line: dict[str, Any], now: int) -> None:
        kind, step, held = line["kind"], line["step"], self._held
        told = {
            key: value
            for key, value in line.items()
            if "/" in key and isinstance(value, int | float)
        }
        # The metrics of a step come together, those of evaluations by memory length.
        names = {key: key if kind == "evaluation" else kind for key in told}
        known = {name for name in names.values() if step in held.steps.get(name, {})}
        metrics = [
            Metric(
                key, float(value), held.steps.setdefault(names[key], {}).setdefault(step, now), step
            )
            for key, value in told.items()
        ]
        if new := [one for one in metrics if names[one.key] not in known]:
            self._metrics.append(new)
        if metrics and kind == "evaluation" and step not in held.scores:
            held.scores[step] = metrics
            self._acts.append(lambda: self._score(step))

    def _try(self, act: Callable[[], object]) -> bool:
        """Whether `act` is off the list: done, or refused TRIES times and that is told."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - whatever MLflow meets, the record goes on
            self._tries += 1
            away = is_away(error)
            if away or self._tries < TRIES:  # that it cannot be reached is no fault of the act
                self._tell(error)
                return False
            what = f"{type(error).__name__}: {first_line(error)[:160]}"  # never a page of SQL
            self._warn(f"MLflow did not record one thing ({what}).")
        self._tries = 0
        return True

    def _tell(self, error: Exception, *, of_folder: bool = False) -> None:
        if not self._warned:
            self._warned = True
            does = "does not answer" if is_away(error) else "refuses what it is sent"
            what, where = (
                ("The run's folder cannot be read", "in MLflow")
                if of_folder
                else (f"MLflow {does}", "there")
            )
            self._warn(
                f"{what} ({first_line(error)[:160]}). Training goes on; "
                f"what is missing {where} is kept and sent later."
            )


def _in_time(ask: Callable[[], str], *, wait_s: float) -> str:
    """What `ask` gives, or what it raises; TimeoutError if it gives nothing in time."""
    answers: list[str] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # noqa: BLE001 - carried to the one who asked
            errors.append(error)

    thread = threading.Thread(target=work, name="mlflow-known", daemon=True)
    thread.start()
    thread.join(wait_s)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"it has not answered in {wait_s:.0f} s")
    return answers[0]
