"""A wish to stop that another process leaves in the run's folder, wherever that folder is seen.

driver.json  there while a process drives the run, and says which
stop.json    there from the wish until that process has ended
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.run_folder import DRIVER, RunFolder
from trainer.temp_folder import is_dead, owner_of

STOP = "stop.json"


@contextmanager
def driving(folder: RunFolder, *, launch: str) -> Iterator[None]:
    """Say for the `with` block that this process, start `launch` of the run, drives and lives."""
    told = {"launch": launch, "host": socket.gethostname(), "process": owner_of(os.getpid())}
    if not folder.is_driven_by(launch):
        folder.remove(STOP)  # meant for an earlier start
        folder.write_json(DRIVER, told)
    folder.beat()  # before MLflow has it as RUNNING, which `longrow runs reap` must not end
    try:
        yield
    finally:
        if folder.driver() == told:  # else a later start has taken the run over
            for name in (STOP, DRIVER):
                folder.remove(name)
            folder.rest()


def asked_to_stop(folder: RunFolder) -> bool:
    """Driver: whether somebody has asked."""
    return folder.existed_lately(STOP)


def ask_to_stop(folder: RunFolder) -> bool:
    """Ask the run's driver to stop after the current step; False if no process drives the run."""
    driver = folder.driver()
    if driver is None or is_dead(driver.get("process")):
        return False
    folder.write_json(STOP, {"host": socket.gethostname(), "pid": os.getpid()})
    return True


def await_end(folder: RunFolder, *, wait_s: float, poll_s: float = 0.2) -> bool:
    """Whether the driver ends within `wait_s`."""
    end = time.monotonic() + wait_s
    while True:
        driver = folder.driver()
        if driver is None or is_dead(driver.get("process")):
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(poll_s)
