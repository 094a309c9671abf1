"""A save that takes longer than a hang is no hang: two ranks wait for it, and for a slow disk."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.tiny_runs import TOML
from trainer.checkpoint import checkpoints, faults
from trainer.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
# Rank 0 of two writes, and later reads, far longer than a vote may take.
SLOW = """
import sys, time
import jobs.train, trainer.saver, trainer.start
from jobs.entry import run

real_part, real_newest = trainer.saver.write_part, trainer.start.newest_of

def write_part(snapshot, folder, *, rank):
    time.sleep(7 if rank == 0 else 0)
    real_part(snapshot, folder, rank=rank)

def newest_of(*args, **options):
    time.sleep(7)
    return real_newest(*args, **options)

trainer.saver.write_part, trainer.start.newest_of = write_part, newest_of
run(jobs.train.command)
"""
REST = """
[trainer]
steps = 3
threads = 1
[optimizer]
warmup_steps = 1
[checkpoint]
every = 1
keep_last = 9
[tracking]
uri = "off"
[cluster]
launcher = "local"
hang_timeout_s = 3
"""


def test_a_save_and_a_check_that_outlast_the_hang_timeout_cost_nothing(
    tiny_store: Path, tmp_path: Path
) -> None:
    config = tmp_path / "run.toml"
    config.write_text((TOML + REST).format(folder=tmp_path / "runs", store=tiny_store))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SLOW, str(config)],
            cwd=ROOT,
            env=os.environ | ranks | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    folder = RunFolder(tmp_path / "runs" / "run")
    assert len(folder.attempts()) == 1
    found = checkpoints(folder.checkpoints)
    assert [path.name for path in found] == [f"step_0000000{step}-a0001" for step in (1, 2, 3)]
    assert [faults(path) for path in found] == [[], [], []]
