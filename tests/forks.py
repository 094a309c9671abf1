"""Processes of `longrow train`, one after the other, forked from one that has imported everything.

A start of ours is five seconds of imports. A test of many starts pays them once: each is a process
like any other, with its own signals and its own death, and the code that runs is all of it.
"""

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[1]
IMPORTED = ("mlflow.tracking", "jobs.drive", "trainer.launch_local", "trainer.pictures")
SENT_S = 0.1  # and not two seconds, between two calls of MLflow


class Forks:
    """The process that has imported everything, while the `with` block lasts."""

    def __enter__(self) -> Self:
        """Start it; the first fork waits for its imports."""
        self._running = 0
        self._server = subprocess.Popen(
            [sys.executable, "-c", "from tests.forks import serve; serve()"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._running:
            os.kill(self._running, signal.SIGKILL)
        self._server.kill()
        self._server.communicate()

    def start(self, words: list[str], log: Path) -> int:
        """`longrow train WORDS`, what it says in `log`; gives its process id."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps([words, str(log)]) + "\n")
        self._server.stdin.flush()
        self._running = self._told()
        return self._running

    def end(self) -> int:
        """Wait for its end; gives its exit code, or minus the signal that ended it."""
        code, self._running = self._told(), 0
        return code

    def _told(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())


def serve() -> None:
    """Fork for each line of standard input; say the process id, then how it ended."""
    for name in IMPORTED:
        import_module(name)
    from jobs.entry import run
    from jobs.train import command
    from trainer import tracking

    tracking.PERIOD_S = SENT_S
    for line in sys.stdin:
        words, log = json.loads(line)
        pid = os.fork()
        if not pid:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
            run(command, words)
        _tell(pid)
        _tell(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _tell(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()
