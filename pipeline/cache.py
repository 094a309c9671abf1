"""Remote parts on this machine: fetched once, right by their hash, within a limit of bytes.

    CACHE/<sha256>.arrow         a part; its times say when it was last opened
    CACHE/.longrow-...           half fetched, or a lock

All processes of a machine may share the folder. A part is known by its hash, so that stores may
share it too. It appears whole or not at all; what was opened longest ago makes room, at any moment:
a part is therefore handed out open. A process that has one mapped keeps it when it is removed: on
disk is then what the limit says, and what is being read (each process keeps no more than the limit
mapped).
"""

import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from pipeline.errors import DataError, missing_file
from pipeline.files import (
    CHUNK,
    TEMPORARY,
    is_temporary,
    make_folder,
    open_binary,
    writing_whole,
)
from pipeline.manifest import PartEntry
from pipeline.settings import SettingsError

TRIES = 4  # to get the right bytes; a line that breaks has tries of its own (steady.py)
PAUSE_S = 0.5  # before the second try; each further pause is twice as long
LOOK_S = 0.05  # between two looks at a lock
LOCK_S = 30.0  # that a process waits for another one's fetch before it fetches itself
STALE_S = 3600.0  # after which nobody writes a half file any more


class PartCache:
    """Takes parts in, hands open files out. Cheap to make; keeps nothing in memory but what it saw.

    Attributes:
        limit_bytes: What the parts in the folder may hold together.
    """

    def __init__(
        self,
        folder: str,
        limit_bytes: int,
        *,
        warn: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Touch nothing yet.

        Args:
            folder: Local; made when the first part comes.
            limit_bytes: What its parts may hold together.
            warn: Told, in a sentence, of a damaged file or a fetch that is tried again; standard
                error without it.
            sleep: Waits so many seconds.
        """
        self.limit_bytes = limit_bytes
        self._folder = Path(folder).expanduser()
        self._warn, self._sleep = warn or partial(print, file=sys.stderr), sleep
        self._right: set[str] = set()  # hashes of files that this process has found right

    def check(self, parts: Sequence[PartEntry]) -> None:
        """Refuse a limit that one of these parts does not fit into.

        Raises:
            SettingsError: It is too small.
        """
        largest = max((part.size_bytes for part in parts), default=0)
        if largest > self.limit_bytes:
            raise SettingsError(
                f"data.cache_bytes = {self.limit_bytes:,} cannot hold a part of {largest:,} bytes, "
                f"the store's largest. Set it to {largest:,} or more; a few parts for each row "
                "are good."
            )

    def fetch(self, url: str, part: PartEntry) -> IO[bytes]:
        """The file of a part, open, fetched from `url` unless it is here; the caller closes it.

        Waits for the fetch of another process, half a minute at most, then fetches itself: that
        one may be frozen.

        Raises:
            DataError: It cannot be reached, or what lies at `url` is not that part, after some
                tries.
            SettingsError: It is larger than the limit.
            OSError: The disk refused.
        """
        path = self._folder / f"{part.sha256}.arrow"
        if (here := self._here(path, part)) is not None:
            return here
        self.check((part,))
        make_folder(self._folder)
        with self._alone(part.sha256):
            return self._here(path, part) or self._bring(url, path, part)

    def _here(self, path: Path, part: PartEntry) -> IO[bytes] | None:
        """The file if it is there and right; a wrong one is removed."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        if os.fstat(file.fileno()).st_size == part.size_bytes and (
            part.sha256 in self._right or _sha256_of(file) == part.sha256
        ):
            with suppress(FileNotFoundError):  # removed just now: what is open stays readable
                os.utime(path)
            self._right.add(part.sha256)
            file.seek(0)
            return file
        file.close()
        self._warn(f"{path} in the cache was damaged; it is fetched again.")
        path.unlink(missing_ok=True)
        return None

    def _bring(self, url: str, path: Path, part: PartEntry) -> IO[bytes]:
        self._make_room(part.size_bytes)
        file = self._copy_patiently(url, path, part)
        self._right.add(part.sha256)
        self._make_room(0, keep=path)  # others may have fetched meanwhile
        return file

    def _copy_patiently(self, url: str, path: Path, part: PartEntry) -> IO[bytes]:
        """The part as the cache's own file; wrong bytes are asked for again a few times."""
        tries = 0
        while True:
            tries += 1
            try:
                return _copy(url, path, part)
            except FileNotFoundError:
                raise missing_file(url) from None
            except WrongBytesError as error:
                if tries == TRIES:
                    raise
                self._warn(f"{url} is fetched again: {error}")
                self._sleep(PAUSE_S * 2 ** (tries - 1))

    def _make_room(self, size_bytes: int, *, keep: Path | None = None) -> None:
        """Remove what was opened longest ago until so many bytes more have room."""
        found: list[tuple[float, Path, int]] = []
        used = size_bytes
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                told = path.stat()
                if not is_temporary(path.name):
                    found.append((told.st_mtime, path, told.st_size))
                elif time.time() - told.st_mtime > STALE_S:
                    path.unlink()  # its writer was killed
                    continue
                used += told.st_size
        for _, path, size in sorted(found):
            if used <= self.limit_bytes:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                used -= size

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Hold the lock of a part, or go on without it when it has been held too long."""
        path = self._folder / f"{TEMPORARY}lock-{name}"
        with path.open("ab") as lock:
            waited_s, ours = 0.0, False
            while not ours and waited_s < LOCK_S:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._sleep(LOOK_S)
                    waited_s += LOOK_S
                else:
                    ours = True
            try:
                yield
            finally:  # whoever waits for it looks for the part when it ends
                if ours:
                    path.unlink(missing_ok=True)


class WrongBytesError(DataError):
    """What came is not the part that the manifest names."""


def _copy(url: str, path: Path, part: PartEntry) -> IO[bytes]:
    """Fetch a part; it gets its name if its bytes are right, and is open before it has it."""
    digest, size = hashlib.sha256(), 0
    with open_binary(url) as source, writing_whole(str(path)) as file:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        if (size, digest.hexdigest()) != (part.size_bytes, part.sha256):
            raise wrong_bytes(url, size, digest.hexdigest(), part)
        file.flush()
        return Path(file.name).open("rb")


def _sha256_of(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def wrong_bytes(url: str, size_bytes: int, sha256: str, part: PartEntry) -> WrongBytesError:
    """The error of a remote part that is not what the manifest says."""
    return WrongBytesError(
        f"{url}, as it came, holds {size_bytes:,} bytes of sha256 {sha256[:12]}; the manifest says "
        f"{part.size_bytes:,} of {part.sha256[:12]}. It was changed, or belongs to another store: "
        "remove it and run `longrow build` again with the same corpus."
    )
