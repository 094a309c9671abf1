"""A remote file that is read to its end although the line breaks now and then.

A read that fails is tried again from the byte where it stopped, after a longer wait each time. What
fails for good, or is not what was there before, ends in a sentence.
"""

import io
import time
from collections.abc import Callable
from typing import IO, Any, TypeVar

from pipeline.errors import DataError

TRIES = 5
FIRST_WAIT_S = 0.5  # doubled from try to try: 7.5 s in all
_FINAL = (  # another try would say the same
    DataError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError,
    ValueError, TypeError, ImportError, NotImplementedError, AttributeError,
)  # fmt: skip
_wait = time.sleep
T = TypeVar("T")


def patiently(call: Callable[[], T], *, url: str, what: str) -> T:
    """What `call` gives, tried again while it fails as a line or a server does.

    Raises:
        DataError: It failed too often.
    """

    def failed(why: str) -> DataError:
        return DataError(
            f"{url} {what}: {why}. Look at the address and at its server, then run this again: "
            "what was built stays."
        )

    return insist(call, failed=failed)


def insist(call: Callable[[], T], *, failed: Callable[[str], Exception]) -> T:
    """As `patiently`; `failed` makes the error from how often it was tried, and the last answer."""
    for attempt in range(1, TRIES + 1):
        try:
            return call()
        except Exception as given:
            # fsspec says "not found" of a web server that is down
            error = _of_the_line(given) if isinstance(given, FileNotFoundError) else given
            if error is None or isinstance(error, _FINAL) or not _may_pass(error):
                raise
            if attempt == TRIES:
                raise failed(
                    f"{TRIES} tries failed, the last with {type(error).__name__} ({error})"
                ) from error
            _wait(FIRST_WAIT_S * 2 ** (attempt - 1))
    raise AssertionError


def _of_the_line(missing: FileNotFoundError) -> BaseException | None:
    """Why a file was not found, if that was an answer's status or no answer; None: it is missing.

    The object stores' "no such key" comes with a cause too, and that one says nothing else.
    """
    cause = missing.__cause__
    kinds = {kind.__name__ for kind in type(cause).__mro__}  # aiohttp's own are no OSError
    answered = isinstance(getattr(cause, "status", None), int)
    return cause if answered or kinds & {"OSError", "ClientConnectionError"} else None


def _may_pass(error: BaseException) -> bool:
    """Whether the same may go well in a while; a web server's 4xx (but 408 and 429) stays."""
    status = getattr(error, "status", None)
    return not isinstance(status, int) or status >= 500 or status in (0, 408, 429)


class Steady(io.RawIOBase):
    """A file that opens itself anew at the byte where a read failed.

    Args:
        open_at: Opens the file for reading from a byte on.
        url: Its address, for messages.
        size: Its bytes, if known: an end before it is a failure too.
    """

    def __init__(self, open_at: Callable[[int], IO[bytes]], *, url: str, size: int | None) -> None:
        self._open_at = open_at
        self._url = url
        self._size = size
        self._at = 0
        self._file: IO[bytes] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._size is not None

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_END and self._size is None:
            raise io.UnsupportedOperation("the end of this file is not known")
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size or 0}[whence]
        if base + offset != self._at:
            self._drop()
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        data = patiently(
            lambda: self._read(len(buffer)), url=self._url, what=f"broke off at byte {self._at:,}"
        )
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._drop()
        super().close()

    def _read(self, count: int) -> bytes:
        try:
            if self._file is None:
                self._file = self._open_at(self._at)
            data = self._file.read(count)
        except BaseException:
            self._drop()
            raise
        if not data and count and self._size is not None and self._at < self._size:
            self._drop()
            raise ConnectionError(f"it ended there, and {self._size:,} bytes were promised")
        return data

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
