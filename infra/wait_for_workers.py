"""Wait until no worker of a training runs on this node; run before a pod that only works goes down.

When a cluster is deleted all its pods are told to end at once. The head's asks the run to stop
(stop_jobs.py), and for its last step and checkpoint the run needs its workers: so their pods wait.
A pod that goes down alone waits in vain, at most as long; the run goes on from its last checkpoint.
"""

import os
import sys
import time
from pathlib import Path

WAIT_S = float(os.environ.get("RAY_JOB_STOP_WAIT_TIME_S", "3")) + 10.0
WORKER = b"RayTrainWorker"  # in the title that Ray gives to the process of one


def main(processes: Path = Path("/proc"), *, wait_s: float = WAIT_S, poll_s: float = 0.5) -> int:
    """Wait; 0 when none is left, 1 when time is up first."""
    end = time.monotonic() + wait_s
    while running := workers(processes):
        if time.monotonic() >= end:
            print(f"longrow: {running} workers still run.")
            return 1
        time.sleep(poll_s)
    print("longrow: no worker runs.")
    return 0


def workers(processes: Path) -> int:
    """How many there are, in a folder like /proc."""
    found = 0
    for command in processes.glob("[0-9]*/cmdline"):
        try:
            found += WORKER in command.read_bytes()
        except OSError:  # it has ended
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
