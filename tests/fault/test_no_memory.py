"""A run that the system gives no more memory says so, and what to do about it."""

import subprocess
import sys
from pathlib import Path

from tests.fault.test_run_death import ROOT, Box

# As a container or a batch system would: a limit from outside, met by the real allocator.
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_run_without_memory_is_told_as_one_and_what_to_do(tiny_store: Path) -> None:
    box = Box(tiny_store)
    command = [*box.command(launcher="local"), "--set", "model.memory=100_000_000"]
    told = subprocess.run(
        [sys.executable, "-c", LIMITED, *command],
        cwd=ROOT,
        env=box.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert told.returncode == 1, told.stderr
    last = told.stderr.strip().splitlines()[-1]
    assert last.startswith("longrow: MemoryError: Rank 0 ran out of memory: take fewer rows")
    assert "Traceback" not in told.stderr
    box.remove()
