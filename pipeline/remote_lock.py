"""Who builds a store in an object store, which knows no locks: a file that its build changes on.

    STORE/build.lock    the process, a name that no other build has, and a count that goes up

A newcomer that finds one waits: if the count goes up, that build lives and the newcomer is refused;
if it stands still, that build was killed and its file is taken over. Two that come at the same
moment both write, and the one that finds the other's name afterwards gives way. A build that finds
its file taken stops before it writes its manifest.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread

from pipeline.errors import DataError
from pipeline.files import read_bytes, remove, write_whole

BEAT_S = 5.0  # between two counts
SILENCE_S = 4 * BEAT_S  # after which a build is held to be dead
SETTLE_S = 0.5  # in which who came at the same moment has written too
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    name: str
    host: str
    process: int
    beat: int = 0

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"

    def has_ended(self) -> bool:
        """Whether it is a process of this machine that is there no more; its clock is not asked."""
        here = self.host == socket.gethostname() and Path("/proc/self").exists()
        return here and not Path(f"/proc/{self.process}").exists()


@contextmanager
def alone_in_remote(url: str, store: str) -> Iterator[Callable[[], None]]:
    """Hold the lock file at `url` for the `with` block.

    Yields:
        Asks whether it is still held.

    Raises:
        DataError: Another build lives there, or took the file meanwhile.
    """
    if (other := _read(url)) is not None and not other.has_ended() and _lives(url, other):
        raise _refused(store, other)
    mine = _Holder(name=uuid.uuid4().hex, host=socket.gethostname(), process=os.getpid())
    _write(url, mine)
    time.sleep(SETTLE_S)

    def check() -> None:
        if (now := _read(url)) is None or now.name != mine.name:
            raise _refused(store, now)

    check()
    ended = Event()
    thread = Thread(target=_beat, args=(url, mine, ended), name="build-lock", daemon=True)
    thread.start()
    try:
        yield check
    finally:
        ended.set()
        thread.join()
        if (now := _read(url)) is not None and now.name == mine.name:
            remove(url)


def _beat(url: str, mine: _Holder, ended: Event) -> None:
    while not ended.wait(BEAT_S):
        with suppress(OSError, DataError):  # the line is down: the next count may get through
            now = _read(url)
            if now is None or now.name != mine.name:
                return
            mine = replace(mine, beat=mine.beat + 1)
            _write(url, mine)


def _lives(url: str, other: _Holder) -> bool:
    until = time.monotonic() + SILENCE_S
    while time.monotonic() < until:
        now = _read(url)
        if now != other:
            return now is not None
        time.sleep(_LOOK_S)
    return False


def _read(url: str) -> _Holder | None:
    try:
        return _Holder(**json.loads(read_bytes(url)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # of another version, or torn: it keeps nobody away
        return None


def _write(url: str, holder: _Holder) -> None:
    write_whole(url, json.dumps(asdict(holder)).encode())


def _refused(store: str, other: _Holder | None) -> DataError:
    return DataError(
        f"{store} is being built at this moment, by {other or 'another process'}. Let that build "
        "end, or end it, or give this one a folder of its own."
    )
