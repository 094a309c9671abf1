"""What a person reads when workers died: the cause, and what to do about it."""

import resource
import subprocess
import sys

import pytest

from trainer.blame import is_collateral, tell, tell_death
from trainer.board import Board

GONE = RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
# What torch and Python really say when the system gives a process no more memory.
HUNGRY = """
import resource, torch
from trainer.blame import tell
torch.ones(8).sum()
for want in (lambda: torch.empty(1 << 36, dtype=torch.uint8), lambda: bytearray(1 << 36)):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 35, resource.RLIM_INFINITY))
    try:
        want()
    except Exception as error:
        print(tell(1, error))
"""


def test_a_lost_peer_is_collateral_and_an_error_of_its_own_is_not() -> None:
    assert is_collateral(GONE)
    assert not is_collateral(RuntimeError("shapes do not match"))
    assert not is_collateral(OSError(28, "No space left on device"))


def test_a_worker_without_memory_says_so() -> None:
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
    told = subprocess.run(
        [sys.executable, "-c", HUNGRY], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(told) == 2
    for line in told:
        assert line.startswith("Rank 1 ran out of memory: take fewer rows")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x\nTask was killed due to the node running low on memory.\ny", "its node ran out of"),
        ("connection error code 2. (1) the process was killed by SIGKILL by OOM killer", "no word"),
    ],
)
def test_a_death_without_a_word_is_told_as_far_as_ray_knows_it(text: str, words: str) -> None:
    assert words in tell_death(0, text)


def test_the_cause_is_told_and_not_what_came_of_it_whatever_came_first() -> None:
    board = Board()
    board.failed(tell(0, GONE), collateral=is_collateral(GONE))
    assert board.drain().notes == []
    board.failed("Rank 1: OSError: No space left on device")
    board.lost(tell_death(1, "..."))
    assert board.enter(0).first_error == "Rank 1: OSError: No space left on device"
    assert board.drain().notes == ["A worker failed. Rank 1: OSError: No space left on device"]


def test_where_nobody_told_the_cause_what_came_of_it_is_told_when_the_workers_start_again() -> None:
    board = Board()
    board.failed(tell(0, GONE), collateral=True)
    assert board.enter(0).first_error.startswith("One left no word. Rank 0: RuntimeError")
    assert len(board.drain().notes) == 1
