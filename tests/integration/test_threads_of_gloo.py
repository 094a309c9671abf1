"""What the ranks of a local run leave behind when their process ends."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from tests.ranks import start_ranks
from tests.tiny_runs import TOML
from trainer.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
REST = """
[trainer]
steps = {steps}
threads = 1
[optimizer]
warmup_steps = 1
[checkpoint]
every = 10
[tracking]
uri = "off"
[cluster]
launcher = "local"
"""
# jobs.train, which tells at its end the names of the threads that are left, the system's too.
TELLING = """
import atexit, pathlib, runpy

def tell():
    for task in pathlib.Path("/proc/self/task").iterdir():
        print("thread", (task / "comm").read_text().strip())

atexit.register(tell)
runpy.run_module("jobs.train", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def start(tiny_store: Path, tmp_path: Path) -> Iterator[Callable[[int], list[Popen[str]]]]:
    """Start the two ranks of a run of so many steps."""
    processes: list[Popen[str]] = []

    def begin(steps: int) -> list[Popen[str]]:
        config = tmp_path / "run.toml"
        text = (TOML + REST).format(folder=tmp_path / "runs", store=tiny_store, steps=steps)
        config.write_text(text)
        processes.extend(start_ranks("-c", TELLING, str(config)))
        return processes

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def threads(words: str) -> list[str]:
    """The names of the threads that were left."""
    return [line.split(None, 1)[1] for line in words.splitlines() if line.startswith("thread ")]


def test_no_thread_of_a_group_is_left_that_could_abort_the_ending_process(
    start: Callable[[int], list[Popen[str]]],
) -> None:
    processes = start(3)
    said = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert all(threads(words) for words in said)
    assert not [name for words in said for name in threads(words) if "gloo" in name]


def test_nor_is_one_left_where_the_other_rank_has_died(
    start: Callable[[int], list[Popen[str]]], tmp_path: Path
) -> None:
    one, other = start(100_000)
    lines = RunFolder(tmp_path / "runs" / "run").path / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (lines.exists() and lines.stat().st_size):
        assert time.monotonic() < deadline
        assert one.poll() is None
        time.sleep(0.05)
    other.kill()
    said = one.communicate(timeout=240)[0]
    assert one.returncode == 1, said
    assert threads(said)
    assert not [name for name in threads(said) if "gloo" in name]
