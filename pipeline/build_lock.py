"""Who builds a store at this moment: one build at a time, as long as its process lives.

    STORE/build.lock    says who; locked (flock) by that process, and removed at its end

The system lets go of the lock when its process ends, however it does, so a dead build blocks
nothing. Object stores know no locks: remote_lock.py keeps the builds of a remote store apart.
"""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.errors import DataError
from pipeline.files import join, local_path, make_folder
from pipeline.remote_lock import alone_in_remote

LOCK = "build.lock"
TRIES, LOOK_S = 20, 0.05  # who only looks holds the lock for a moment


@contextmanager
def alone_in(store: str) -> Iterator[Callable[[], None]]:
    """Be the only build of a store for the `with` block.

    Yields:
        Asks whether that still holds, before what is there is judged whole; of a local store it
        does.

    Raises:
        DataError: Another process builds there.
    """
    path = local_path(join(store, LOCK))
    if path is None:
        with alone_in_remote(join(store, LOCK), store) as check:
            yield check
        return
    make_folder(path.parent)
    with _locked(path, store) as file:
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            file.flush()
            yield lambda: None
        finally:
            path.unlink(missing_ok=True)  # before the lock goes: the next one makes its own


def builder_of(store: str) -> str:
    """Which process builds a store now, in words; empty if none does, or nobody can tell."""
    path = local_path(join(store, LOCK))
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            return "" if _lock(file, fcntl.LOCK_SH) else _said(file)
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _locked(path: Path, store: str) -> IO[bytes]:
    said = ""
    for _ in range(TRIES):
        file = path.open("a+b")
        if _lock(file, fcntl.LOCK_EX) and _is_still(path, file):
            return file
        said = _said(file)
        file.close()
        time.sleep(LOOK_S)
    raise DataError(
        f"{store} is being built at this moment, by {said}. Let that build end, or end it, or "
        "give this one a folder of its own."
    )


def _lock(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, file: IO[bytes]) -> bool:
    """Whether an open file is the one of that name: the build before may have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _said(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace") or "another process"
