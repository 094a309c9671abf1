"""A run whose store is still to be built: its folder is taken, and a wish to stop is heard there.

Before the training begins there is no loop that asks. So a thread looks into the folder, and
unwinds what this process does as SIGTERM would.
"""

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from jobs.entry import Terminated
from trainer.run_folder import DRIVER, RunFolder
from trainer.stop_request import asked_to_stop, driving

LOOK_S = 0.5
LIVES_S = 20.0  # a driver leaves a sign of life every 5 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run's folder that this process has taken.

    Attributes:
        launch: The start of the run, as driver.json says it.
        begun: Set when the run has begun: from then on an error leaves its folder.
    """

    launch: str
    begun: threading.Event


@contextmanager
def claimed(folder: RunFolder, *, first: bool, say: Callable[[str], None]) -> Iterator[Claim]:
    """Take the folder for the `with` block; by the first of several ranks, the others only look.

    Whoever trains it meanwhile is told of, for it ends.

    Raises:
        ConfigError: It cannot be made or written to.
    """
    launch = secrets.token_hex(4)
    with kept_if_begun(folder, first=first) as begun:
        folder.create()
        claim = Claim(launch=launch, begun=begun)
        if not first:
            yield claim
            return
        if other := taken_over(folder, now=time.time()):
            say(other)
        with driving(folder, launch=launch):
            yield claim


def taken_over(folder: RunFolder, *, now: float) -> str:
    """What to say where the run is trained elsewhere, or was a moment ago; empty where it is not.

    Args:
        folder: Of the run, before it is taken.
        now: Seconds since 1970.
    """
    beat = folder.last_beat()
    if beat is None or now - beat > LIVES_S:
        return ""
    return (
        f"{folder.place} is trained by another start, or was {max(0.0, now - beat):.0f} s ago: "
        "this start takes the run over, from its newest checkpoint, and the other one ends."
    )


@contextmanager
def heard(folder: RunFolder, *, first: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Let `longrow stop` unwind the `with` block, in the main thread, as SIGTERM does."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            with suppress(OSError):  # where nobody answers, it is as before
                if asked_to_stop(folder):
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    thread = threading.Thread(target=look, name="stop", daemon=True)
    if first:
        thread.start()
    try:
        yield
    except (KeyboardInterrupt, SystemExit, Terminated):
        say(
            "Stopping while the store is built: what is done of it stays, and the same command "
            "goes on with it."
        )
        raise
    finally:
        ended.set()
        if first:
            thread.join()


@contextmanager
def kept_if_begun(folder: RunFolder, *, first: bool) -> Iterator[threading.Event]:
    """The first rank: remove a folder that is new if there is an error before the event is set."""
    new, begun = first and folder.is_new(), threading.Event()
    above = [path for path in folder.path.parents if not path.exists()]
    try:
        yield begun
    except BaseException:
        # Nothing began, so nothing stays, unless another start has taken it over meanwhile.
        if new and not begun.is_set() and not folder.is_new() and not folder.exists(DRIVER):
            folder.discard()
            with suppress(OSError):  # not empty: another run has come
                for path in above:
                    path.rmdir()
        raise
