"""Freed memory stays with the process, so that the next step finds its pages there."""

import platform
import resource
import subprocess
import sys

import pytest

from trainer.heap import keep_heap

LIBRARY, VERSION = platform.libc_ver()
FAULTS = """
import ctypes, resource
from trainer.heap import keep_heap
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
{call}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        block = ctypes.c_void_p(library.malloc(96_000_000))  # the last one of the heap
        ctypes.memset(block, 1, 96_000_000)
        library.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(min(faults() for _ in range(5)))
"""


def faults(call: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(call=call)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(
    LIBRARY != "glibc" or [int(word) for word in VERSION.split(".")] < [2, 35],
    reason="the switch is glibc's, and older ones take no such block",
)
def test_a_block_that_is_freed_and_taken_again_costs_no_page_faults() -> None:
    pages = 96_000_000 // resource.getpagesize()
    assert faults("assert keep_heap()") < pages // 100


def test_what_the_environment_says_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not keep_heap()
