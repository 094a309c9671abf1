"""A save that takes longer than a hang is no hang: two ranks wait for it, and for a slow disk."""

from pathlib import Path

from tests.ranks import end_well, start_ranks
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
    end_well(start_ranks("-c", SLOW, str(config)))
    folder = RunFolder(tmp_path / "runs" / "run")
    assert len(folder.attempts()) == 1
    found = checkpoints(folder.checkpoints)
    assert [path.name for path in found] == [f"step_0000000{step}-a0001" for step in (1, 2, 3)]
    assert [faults(path) for path in found] == [[], [], []]
