"""A run's folder on an object store: as run_folder.py has it, over a copy on this machine.

What differs there:

metrics/a0001-000000.jsonl ...  the lines of attempt 1, piece by piece, each written whole
checkpoints/NAME/               no .part: it is a checkpoint once manifest.json is there, put last

Nothing is ever cut or rewritten: a later attempt says from which step it goes on, and what earlier
ones wrote past that step does not count. So a process that was overtaken and does not know it yet
can do no harm. It looks every few seconds, and always just before it commits a checkpoint.
"""

import json
import threading
import time
from collections.abc import Container, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.files import join, local_path
from trainer.errors import ConfigError
from trainer.mirror import LARGE, Mirror, names_in
from trainer.run_folder import (
    CHECKPOINTS,
    HEARTBEAT,
    Attempt,
    RunFolder,
    damaged,
    overtaken,
    read_table,
)

METRICS, MANIFEST = "metrics", "manifest.json"
PIECE_LINES, PIECE_S = 4096, 60.0  # a piece is put when it has so many lines, or is so old
LATELY_S = 5.0
_OPEN: dict[str, "RemoteRun"] = {}  # one a run in a process, by its URL and by its copy's path
_OPENING = threading.Lock()


def open_run(place: str | Path) -> RunFolder:
    """The run at a path or at a URL.

    Raises:
        DataError: Nobody here knows the URL's scheme.
    """
    word = str(place).rstrip("/")
    path = local_path(word)
    with _OPENING:
        if known := _OPEN.get(word):
            return known
        if path is not None:
            return RunFolder(path)
        run = RemoteRun(word)
        _OPEN[word] = _OPEN[str(run.path)] = run
    return run


class RemoteRun(RunFolder):
    """A run whose folder is at a URL; `path` is the copy."""

    def __init__(self, url: str) -> None:
        """See how things stand there."""
        self.mirror = Mirror(url)
        super().__init__(self.mirror.path)
        for folder in (self.checkpoints, self.evaluations, self._attempts):
            folder.mkdir()
        self._buffer: list[dict[str, Any]] = []
        self._begun = 0.0  # when the first line of the buffer came
        self._pieces: dict[int, int] = {}  # of each attempt of this process
        self._waiting: list[str] = []  # pieces that are still to be put
        self._lines = threading.RLock()
        self._putting = threading.Lock()
        self._putter = ThreadPoolExecutor(1, thread_name_prefix="pieces")
        self._looker = ThreadPoolExecutor(1, thread_name_prefix="looker")
        self._beating: Future[None] | None = None
        self._looked: dict[str, tuple[float, bool]] = {}
        self._unfinished: set[str] = set()
        try:
            self.refresh()
        except OSError as error:
            raise DataError(f"{error}. Look at the address, and at the access to it.") from error

    @property
    def place(self) -> str:
        """The URL."""
        return self.mirror.url

    def named(self, text: str) -> str:
        """With the URL for the copy's path."""
        return text.replace(str(self.path), self.place)

    def refresh(self, under: str = "") -> None:
        """Bring the small files that are new there, all but the metrics."""
        found = self.mirror.refresh(under, leave=_leave)
        if not under or under == CHECKPOINTS:
            folders = {f"{CHECKPOINTS}/{name}" for name in names_in(found, CHECKPOINTS)}
            self._unfinished = {one for one in folders if f"{one}/{MANIFEST}" not in found}

    def put_up(self, path: Path) -> None:
        self.mirror.put(path.relative_to(self.path).as_posix())

    def is_new(self) -> bool:
        return not self.mirror.files()

    def discard(self) -> None:
        self.mirror.remove_all()

    def create(self) -> None:
        super().create()
        try:
            self.touch(".probe")
            self.remove(".probe")
        except OSError as error:
            raise ConfigError(
                f"The run folder {self.place} cannot be written to: {error}. Set run.folder to a "
                "place that can, or see to the access."
            ) from error

    def beat(self, *, launch: str = "") -> None:
        """Have another thread leave a sign of life, unless it still waits with the last one."""
        if self._beating is None or self._beating.done():
            self._beating = self._looker.submit(self._beat_quietly, launch)

    def _beat_quietly(self, launch: str) -> None:
        with suppress(OSError, DataError):
            if not launch or self.is_driven_by(launch):
                self.touch(HEARTBEAT)

    def last_beat(self) -> float | None:
        return self.mirror.modified(HEARTBEAT)

    def rest(self) -> None:
        if self._beating is not None:
            self._beating.result()
        with suppress(OSError):
            self.remove(HEARTBEAT)

    def touch(self, name: str) -> None:
        self.mirror.write(name, b"")
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def exists(self, name: str) -> bool:
        return self.mirror.exists(name)

    def existed_lately(self, name: str) -> bool:
        """Whether it was there when another thread looked last, some seconds ago."""
        when, found = self._looked.get(name, (-LATELY_S, False))
        now = time.monotonic()
        if now - when > LATELY_S:
            self._looked[name] = (now, found)
            self._looker.submit(self._look, name)
        return found

    def _look(self, name: str) -> None:
        with suppress(OSError):  # where nobody answers, it is as before
            self._looked[name] = (time.monotonic(), self.mirror.exists(name))

    def remove(self, name: str) -> None:
        self.mirror.remove(name)
        self._looked.pop(name, None)

    def read_json(self, name: str) -> dict[str, Any] | None:
        data = self.mirror.read(name)
        return None if data is None else read_table(Path(self.place) / name, data)

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        super().write_json(name, value)
        self.mirror.put(name)

    def attempts(self) -> list[Attempt]:
        self.mirror.refresh("attempts", leave=lambda _name, _found: False)
        return super().attempts()

    def begin(self, attempt: Attempt) -> None:
        text = json.dumps(asdict(attempt)) + "\n"
        if not self.mirror.create(f"attempts/{attempt.number:04d}.json", text.encode()):
            raise self._taken(attempt)

    def sweep(self, *, launch: str) -> None:
        for name in self.mirror.files():
            if name.startswith(".seen-") and not name.startswith(f".seen-{launch}-"):
                self.remove(name)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines that count, by step: those of the highest attempt that came to a step."""
        self.mirror.bring(METRICS)
        attempts = self.attempts()
        told: dict[tuple[str, int], dict[str, Any]] = {}
        for line in self._all_lines():
            if not overtaken(line, attempts):
                key = line["kind"], line["step"]
                told.pop(key, None)  # an evaluation may have been made anew
                told[key] = line
        yield from sorted(told.values(), key=lambda line: line["step"])

    def _all_lines(self) -> Iterator[dict[str, Any]]:
        for path in sorted((self.path / METRICS).glob("a*.jsonl")):
            shown = Path(self.named(str(path)))
            for text in path.read_bytes().splitlines():
                line = read_table(shown, text)
                if not {"kind", "step", "attempt"} <= line.keys():
                    raise damaged(shown, "a line has no kind, no step or no attempt")
                yield line
        with self._lines:
            yield from list(self._buffer)

    def add_line(self, line: dict[str, Any]) -> None:
        """Keep one more line; what is put, another thread puts."""
        with self._lines:
            if not self._buffer:
                self._begun = time.monotonic()
            self._buffer.append(line)
            full = len(self._buffer) >= PIECE_LINES or time.monotonic() - self._begun > PIECE_S
        if full:
            self.sync_lines()
            self._putter.submit(self._put_quietly)

    def sync_lines(self) -> None:
        """Make a piece of the lines so far; it is put before the next manifest is."""
        with self._lines:
            if not self._buffer:
                return
            number = self._buffer[0]["attempt"]
            piece = self._pieces.get(number, 0)
            name = f"{METRICS}/a{number:04d}-{piece:06d}.jsonl"
            text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in self._buffer)
            (self.path / METRICS).mkdir(exist_ok=True)
            (self.path / name).write_text(text, encoding="utf-8")
            self._pieces[number] = piece + 1
            self._waiting.append(name)
            self._buffer = []

    def put_lines(self) -> None:
        """Put the pieces that are still here.

        Raises:
            OSError: The store refused.
        """
        with self._putting:
            while self._waiting:
                self.mirror.put(self._waiting[0])
                del self._waiting[0]

    def _put_quietly(self) -> None:
        with suppress(OSError):  # they wait for the next checkpoint, which tells it
            self.put_lines()

    def end_lines(self, attempt: int) -> None:
        self.sync_lines()
        with suppress(OSError):  # they are past the last checkpoint, and will come again
            if self._waiting and not self.exists(f"attempts/{attempt + 1:04d}.json"):
                self.put_lines()

    def cut(self, step: int) -> None:
        """Drop evaluations and anchors past `step`; the lines past it do not count any more."""
        self.refresh()
        for path in list(self.past(step)):
            self.remove(path.relative_to(self.path).as_posix())

    def drop_evaluation(self, step: int) -> None:
        """Nothing to do: of two lines the later counts."""

    def fetch(self, checkpoint: Path) -> None:
        """Bring all of a checkpoint.

        Raises:
            OSError: The store gave it not.
        """
        self.mirror.bring(f"{CHECKPOINTS}/{checkpoint.name}")

    def let_go(self, checkpoint: Path) -> None:
        for path in checkpoint.glob(f"*{LARGE}"):
            self.mirror.forget(path.relative_to(self.path).as_posix())

    def sizes(self, checkpoint: Path) -> dict[str, int]:
        found = self.mirror.files(f"{CHECKPOINTS}/{checkpoint.name}")
        return {name.rpartition("/")[2]: size for name, (size, _) in found.items()}

    def unfinished(self) -> list[str]:
        return [
            f"{join(self.place, name)} has no manifest.json: its writing was cut short, or the "
            "manifest was lost"
            for name in sorted(self._unfinished)
        ]

    def drop_unfinished(self, attempt: int) -> None:
        for name in self._unfinished:
            number = name.rpartition("-a")[2]
            if number.isdecimal() and int(number) < attempt:
                self.mirror.remove_all(name)

    def remove_checkpoint(self, checkpoint: Path) -> None:
        name = f"{CHECKPOINTS}/{checkpoint.name}"
        if self.exists(f"{name}/pinned"):  # since it was looked at
            return
        self.mirror.remove_all(name, first=f"{name}/{MANIFEST}")


def _leave(name: str, found: Container[str]) -> bool:
    """Whether a file stays there until it is asked for, or until its checkpoint is one."""
    if name.endswith(LARGE) or name.startswith((f"{METRICS}/", "profile/")):
        return True
    top, _, inner = name.partition("/")
    folder = f"{top}/{inner.partition('/')[0]}"
    return top == CHECKPOINTS and f"{folder}/{MANIFEST}" not in found
