"""Ctrl-C, SIGTERM and SIGHUP as a wish to stop: the first asks, the second ends at once."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ECHO_S = 1.0  # `timeout` and others send SIGTERM to a process and at once to its group: twice to it


class StopWish:
    """Whether somebody asked the driver to stop, and how.

    Attributes:
        signal: The signal that asked, or None.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._asked_s = -ECHO_S

    def reason(self) -> str:
        """Why to stop, for a person; empty when nobody asked."""
        return "" if self.signal is None else f"{self.signal.name} was received"

    def ask(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal: the first is remembered, a second ends at once, as the first would.

        SIGHUP is no second: of a terminal that closes, the kernel and the shell each send one. Nor
        is a SIGTERM that comes with the first.
        """
        now = time.monotonic()
        if self.signal is not None:
            same = number == self.signal
            if number == signal.SIGHUP or (same and is_echo(number, now - self._asked_s)):
                return
            if self.signal is signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(int(signal.SIGTERM))
        self.signal, self._asked_s = signal.Signals(number), now


def is_echo(number: int, after_s: float) -> bool:
    """Whether a signal, `after_s` after the one before it, is but the same one sent twice."""
    return number == signal.SIGTERM and after_s < ECHO_S


@contextmanager
def stop_wish(came: signal.Signals | None = None) -> Iterator[StopWish]:
    """Own SIGINT and SIGTERM for the `with` block; enter it after `ray.init`, which takes SIGTERM.

    SIGHUP too, unless it is ignored, as under nohup. The handlers only remember. In the main thread
    only, as Python demands.

    Args:
        came: What was sent before, and has not ended the process.
    """
    wish = StopWish()
    wish.signal = came
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))
    before = {number: signal.signal(number, wish.ask) for number in numbers}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let no SIGINT or SIGTERM into the `with` block: for what cleans up, and is over soon."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python gives signals to the main thread alone
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
