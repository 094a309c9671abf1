"""A run's folder: what lies where, which attempt may write, and the lines of its metrics.

config.json                  the resolved config of the last start
mlflow.json                  which MLflow run this is, and by which key it is found before that
driver.json                  there while a process drives the run, and says which (stop_request.py)
stop.json                    there from the wish to stop until that process has ended
attempts/0001.json ...       one a start of the workers: from which step, with how many
metrics.jsonl                one line a step, the truth about the run
checkpoints/                 step_00000100-a0001 ... (checkpoint.py)
evaluations/                 one file an evaluation; by_minutes.json: where the clock put some
anchors/                     states of the rows along the way (anchors.py)
heartbeat                    touched every few seconds while the run trains; then it is removed
profile/                     attempt-0001-rank-0.json: a trace, with trainer.profile
errors/                      attempt-0001-rank-0.txt: what a worker died of
samples/                     texts that the run wrote when it was done
summary.json                 the closing table; written when a start ends, done or stopped

Here the folder is one of a file system; remote_run.py has the same on an object store.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.files import write_whole
from trainer.errors import ConfigError, OvertakenError

_OF_A_STEP = re.compile(
    r"(?:memory_|context_)?step_(\d+)(?:_[LM]\d+)?(?:-[0-9a-f]{8})?\.(?:json|png)$"
)
HEARTBEAT, BY_MINUTES = "heartbeat", "by_minutes.json"
CHECKPOINTS, DRIVER, MLFLOW = "checkpoints", "driver.json", "mlflow.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run's workers.

    Attributes:
        number: From 1; the highest one alone may write.
        launch: The start of the driver it belongs to.
        start_step: Steps that were done when it began.
        world_size: W.
        threads: Torch threads of each worker; another count is not bit-exact.
        resumed_from: Name of the checkpoint it went on from; empty at a fresh start.
    """

    number: int
    launch: str
    start_step: int
    world_size: int
    threads: int
    resumed_from: str


class RunFolder:
    """Names in a run's folder, and its small files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / CHECKPOINTS
        self.evaluations = self.path / "evaluations"
        self.profile = self.path / "profile"
        self.anchors = self.path / "anchors"
        self._attempts = self.path / "attempts"

    @property
    def place(self) -> str:
        """The folder as a person, or another process, is to name it."""
        return str(self.path)

    def named(self, text: str) -> str:
        """A sentence in which files are named as they are to be found."""
        return text

    def refresh(self, under: str = "") -> None:
        """Take in what other processes have written; of the folder `under` alone, if given."""

    def put_up(self, path: Path) -> None:
        """Say that a file below `path` was written, wherever such things are kept."""

    def is_new(self) -> bool:
        """Whether nothing is there yet."""
        return not self.path.exists()

    def discard(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.path)

    def create(self) -> None:
        """Make the folder and what it always holds.

        Raises:
            ConfigError: The folder cannot be made or written to.
        """
        try:
            for path in (self.path, self.checkpoints, self.evaluations, self._attempts):
                path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"The run folder {self.path} cannot be written to: {error.strerror}. Set "
                "run.folder to a folder that can, or make room there."
            ) from error

    def beat(self, *, launch: str = "") -> None:
        """Leave a sign of life; a disk that refuses it must not end what lives.

        With `launch`, only while driver.json names that start of the run: a process that slept
        while another took the run over, and wakes up when that has ended, is no life of it.
        """
        with suppress(OSError, DataError):
            if not launch or self.is_driven_by(launch):
                (self.path / HEARTBEAT).touch()

    def driver(self) -> dict[str, Any] | None:
        """Who drives the run; None where nobody does, empty where driver.json cannot be read.

        It is a sign and no more: which attempt may write is said elsewhere. A run does not end, and
        does not fail to go on, for a damaged one.
        """
        try:
            return self.read_json(DRIVER)
        except DataError:
            return {}

    def is_driven_by(self, launch: str) -> bool:
        """Whether driver.json says that this start of the run drives it."""
        return (self.driver() or {}).get("launch") == launch

    def record(self) -> dict[str, str]:
        """The run's record in MLflow, `run_id` and `uri`; empty where it has none.

        Raises:
            DataError: mlflow.json is damaged.
        """
        told: dict[str, Any] | None = {}
        with suppress(DataError):
            told = self.read_json(MLFLOW)
        if told is None:
            return {}
        if not all(isinstance(told.get(key), str) for key in ("run_id", "uri")):
            raise DataError(
                f"{self.named(str(self.path / MLFLOW))} is damaged: it does not say which MLflow "
                "run this is. Put it back from a copy; or remove it, and the run begins another "
                "record there."
            )
        return told

    def last_beat(self) -> float | None:
        """When the last sign of life was left, in seconds since 1970; None if the run has ended."""
        try:
            return (self.path / HEARTBEAT).stat().st_mtime
        except FileNotFoundError:
            return None

    def rest(self) -> None:
        """Say that nothing trains here any more."""
        with suppress(OSError):
            (self.path / HEARTBEAT).unlink()

    def touch(self, name: str) -> None:
        """Leave an empty file."""
        (self.path / name).touch()

    def exists(self, name: str) -> bool:
        """Whether there is a file `name`."""
        return (self.path / name).exists()

    def existed_lately(self, name: str) -> bool:
        """The same for one that asks all the time."""
        return self.exists(name)

    def remove(self, name: str) -> None:
        """Remove a file; a missing one is fine."""
        (self.path / name).unlink(missing_ok=True)

    def evaluation(self, step: int) -> Path:
        """The file of the scores that the run itself found at `step`."""
        return self.evaluations / f"step_{step:08d}.json"

    def steps_by_minutes(self) -> list[int]:
        """Steps on which the clock put an evaluation, ascending."""
        found = self.read_json(f"evaluations/{BY_MINUTES}")
        return list(found["steps"]) if found else []

    def keep_steps_by_minutes(self, steps: Iterable[int]) -> None:
        """Remember these steps; a resume evaluates there again."""
        self.write_json(f"evaluations/{BY_MINUTES}", {"steps": sorted(steps)})

    def read_json(self, name: str) -> dict[str, Any] | None:
        """The JSON object in file `name`, or None where there is no such file."""
        path = self.path / name
        return read_table(path, path.read_bytes()) if path.exists() else None

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write `value` to file `name`, whole or not at all."""
        text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        write_whole(str(self.path / name), text.encode())

    def attempts(self) -> list[Attempt]:
        """All starts of the workers so far, oldest first."""
        return [_attempt(path) for path in sorted(self._attempts.glob("[0-9]*.json"))]

    def next_attempt(self) -> int:
        """The number that the next attempt takes."""
        return max((attempt.number for attempt in self.attempts()), default=0) + 1

    def begin(self, attempt: Attempt) -> None:
        """Take the run over: from now on only this attempt may write.

        Raises:
            ConfigError: Another process took the same number at this moment.
        """
        path = self._attempts / f"{attempt.number:04d}.json"
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(json.dumps(asdict(attempt)) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)  # unlike a rename, refuses to replace
        except (FileExistsError, FileNotFoundError):  # or it has swept our draft away
            raise self._taken(attempt) from None
        finally:
            draft.unlink(missing_ok=True)

    def _taken(self, attempt: Attempt) -> ConfigError:
        return ConfigError(
            f"Attempt {attempt.number} of the run in {self.place} was begun by another process at "
            "this moment. One run has one writer: stop the other, or name this run anew."
        )

    def sweep(self, *, launch: str) -> None:
        """Remove what earlier starts left that were killed while they began."""
        for draft in self._attempts.glob(".[0-9]*.json.*"):
            if (self._attempts / f"{draft.name[1:].split('.')[0]}.json").exists():
                draft.unlink(missing_ok=True)  # its number is taken
        for path in self.path.glob(".seen-*"):
            if not path.name.startswith(f".seen-{launch}-"):
                path.unlink(missing_ok=True)

    def check_lease(self, number: int, *, now: bool = False) -> None:
        """Refuse to write for an attempt that was overtaken by a later one.

        Args:
            number: Of the attempt that wants to write.
            now: Look again, though it was looked a moment ago.

        Raises:
            OvertakenError: A later attempt owns the run.
        """
        # Numbers are taken in order: one look suffices, cheap enough for every step.
        later = f"attempts/{number + 1:04d}.json"
        if self.exists(later) if now else self.existed_lately(later):
            raise OvertakenError(
                f"Attempt {number} of the run in {self.place} was overtaken by a later one, of "
                "another process: nothing more is written by this one. One run has one writer."
            )

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl that count; one that a crash cut short is left out.

        What an attempt wrote past the step that a later one began at does not count: it was asleep
        between its look at the lease and its line.
        """
        return (line for line, _, _ in self._placed_lines())

    def _placed_lines(self) -> Iterator[tuple[dict[str, Any], int, int]]:
        """The lines that count, each with the bytes of the file where it begins and ends."""
        if not self.metrics.exists():
            return
        attempts: list[Attempt] | None = None
        end = 0
        with self.metrics.open("rb") as file:
            for line in file:
                begin, end = end, end + len(line)
                if line.endswith(b"\n"):
                    told = read_table(self.metrics, line)
                    if not {"kind", "step"} <= told.keys():
                        raise damaged(self.metrics, "a line has no kind or no step")
                    attempts = self.attempts() if attempts is None else attempts
                    if not overtaken(told, attempts):
                        yield told, begin, end

    def counts(self, line: dict[str, Any]) -> bool:
        """Whether a line still counts: no later attempt took its step again."""
        number = line.get("attempt")
        if number is None or not self.existed_lately(f"attempts/{number + 1:04d}.json"):
            return True
        return not overtaken(line, self.attempts())

    def add_line(self, line: dict[str, Any]) -> None:
        """Write one more line, whole or not at all; it has the attempt that it is of.

        Raises:
            OSError: The disk refused.
        """
        data = memoryview((json.dumps(line, allow_nan=False) + "\n").encode())
        with self.metrics.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:  # half a line would spoil the next one
                file.truncate(before)
                raise

    def end_lines(self, attempt: int) -> None:
        """Say that no more lines come of this attempt."""

    def sync_lines(self) -> None:
        """See that the lines so far are on the disk, as the checkpoint after them will be."""
        with self.metrics.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())

    def keep_error(self, rank: int, text: str, *, launch: str) -> str:
        """Keep the traceback of a worker that fails; returns where.

        It is of the last attempt of `launch`: a later one may be another driver's.
        """
        mine = [attempt.number for attempt in self.attempts() if attempt.launch == launch]
        path = self.path / "errors" / f"attempt-{max(mine, default=0):04d}-rank-{rank}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.put_up(path)
        return self.named(str(path))

    def cut(self, step: int) -> None:
        """Drop lines, evaluations and anchors past `step`: lost, they will come again.

        What `longrow evaluate` wrote of such a step goes too: the weights it scored are no more.
        """
        self._drop_lines(lambda line: line["step"] > step)
        for path in self.past(step):
            path.unlink()

    def past(self, step: int) -> Iterator[Path]:
        """The evaluations and anchors past `step`."""
        for path in (*self.evaluations.glob("*"), *self.anchors.glob("step_*.json")):
            named = _OF_A_STEP.match(path.name)
            if named and int(named[1]) > step:
                yield path

    def drop_evaluation(self, step: int) -> None:
        """Drop the line of the evaluation at `step`: it is made anew, with other settings."""
        self._drop_lines(lambda line: line["kind"] == "evaluation" and line["step"] == step)

    def _drop_lines(self, gone: Callable[[dict[str, Any]], bool]) -> None:
        """Keep the lines that count and are not `gone`."""
        kept_bytes = kept_to = 0
        for line, begin, end in self._placed_lines():
            if not gone(line):
                kept_bytes, kept_to = kept_bytes + end - begin, end
        if kept_bytes < kept_to:  # one that goes stands between others
            kept = [json.dumps(line) + "\n" for line in self.lines() if not gone(line)]
            write_whole(str(self.metrics), "".join(kept).encode())
        elif self.metrics.exists():  # the rule: what goes stands at the end; a full disk allows it
            with self.metrics.open("r+b") as file:
                file.truncate(kept_to)
                os.fsync(file.fileno())

    def fetch(self, checkpoint: Path) -> None:
        """Have the tensors of a checkpoint here, to read them."""

    def let_go(self, checkpoint: Path) -> None:
        """Say that they have been read."""

    def sizes(self, checkpoint: Path) -> dict[str, int]:  # noqa: ARG002 - of a store it matters
        """Bytes of the files of a checkpoint that are not here; names of the folder."""
        return {}

    def remove_checkpoint(self, checkpoint: Path) -> None:
        """Remove a checkpoint, the manifest first: from then on it is none."""
        (checkpoint / "manifest.json").unlink(missing_ok=True)
        shutil.rmtree(checkpoint)

    def unfinished(self) -> list[str]:
        """Sentences on checkpoints without a manifest, where nothing else tells them apart."""
        return []

    def drop_unfinished(self, attempt: int) -> None:
        """Remove these, if earlier attempts than `attempt` left them."""


def overtaken(line: dict[str, Any], attempts: Iterable[Attempt]) -> bool:
    """Whether a later attempt than the line's took its step again; a line of none is never."""
    number, step = line.get("attempt"), line["step"]
    if number is None:
        return False
    return any(one.number > number and one.start_step < step for one in attempts)


def read_table(path: Path, data: bytes) -> dict[str, Any]:
    """The JSON object in `data`, which came from `path`.

    Raises:
        DataError: It holds none.
    """
    try:
        told = json.loads(data)
    except ValueError as error:  # no UTF-8, or no JSON
        raise damaged(path, str(error)) from error
    if not isinstance(told, dict):
        raise damaged(path, "it holds no table")
    return told


def _attempt(path: Path) -> Attempt:
    try:
        return Attempt(**read_table(path, path.read_bytes()))
    except TypeError as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, what: str) -> DataError:
    """An error on a file of a run."""
    return DataError(
        f"{path} is damaged: {what}. Put it back from a copy; or train under another run.name."
    )
