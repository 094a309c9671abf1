"""A remote file comes whole or the reader is told; no byte is given twice."""

import io
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import steady
from pipeline.errors import DataError
from pipeline.steady import Steady

DATA = bytes(range(256)) * 4


class Breaking(io.RawIOBase):
    """A stream over DATA that gives `left` bytes and then ends, or fails."""

    def __init__(self, place: int, left: int, *, silent: bool) -> None:
        self._at, self._end, self._silent = place, min(place + left, len(DATA)), silent

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1, /) -> bytes:
        found = DATA[self._at : min(self._at + count, self._end)]
        if not found and self._end < len(DATA) and not self._silent:
            raise ConnectionResetError("gone")
        self._at += len(found)
        return found


@pytest.mark.parametrize("silent", [True, False])
@given(
    lives=st.lists(st.integers(0, 200), max_size=20),
    asks=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    at=st.integers(0, len(DATA)),
)
def test_a_file_that_breaks_off_is_read_on_from_there(
    silent: bool, lives: list[int], asks: list[int], at: int
) -> None:
    left = iter(lives)
    failures = 0  # in a row
    worst = 0

    def open_at(place: int) -> IO[bytes]:
        nonlocal failures, worst
        life = next(left, len(DATA))
        failures = failures + 1 if life == 0 and place < len(DATA) else 0
        worst = max(worst, failures)
        return Breaking(place, life, silent=silent)  # pyright: ignore[reportReturnType]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steady, "_wait", lambda _: None)
        file = Steady(open_at, url="x://y", size=len(DATA))
        file.seek(at)
        found = b""
        try:
            for ask in [*asks, *[300] * 60]:
                found += file.read(ask) or b""
        except DataError as error:
            said = str(error)
        else:
            said = ""
    assert DATA[at:].startswith(found)
    assert said.startswith(f"x://y broke off at byte {at + len(found):,}: 5 tries") or not said
    # the first try may have met the end of a life that gave something
    assert worst >= steady.TRIES - 1 if said else found == DATA[at:]


class AnswerError(Exception):
    """A server's answer that is no success."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class ClientConnectionError(Exception):
    """No answer at all, as aiohttp says it."""


@pytest.mark.parametrize(
    ("cause", "waits"),
    [
        (None, False),
        (LookupError("NoSuchKey"), False),  # as an object store's error that has no status
        (FileNotFoundError("inner"), False),
        (AnswerError(404), False),
        (AnswerError(503), True),
        (ConnectionRefusedError("no"), True),
        (ClientConnectionError("no"), True),
    ],
)
def test_what_is_missing_is_missing_at_once_and_a_server_that_is_down_is_not_missing(
    cause: Exception | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(steady, "_wait", waited.append)

    def ask() -> None:
        raise FileNotFoundError("x://y") from cause

    with pytest.raises(DataError if waits else FileNotFoundError):
        steady.patiently(ask, url="x://y", what="does not answer")
    assert len(waited) == (steady.TRIES - 1 if waits else 0)
