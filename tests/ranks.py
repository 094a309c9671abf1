"""Ranks without Ray, as torchrun would start them on this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def ranks_here(world_size: int) -> list[dict[str, str]]:
    """What the environment of each rank says of the others."""
    port = str(free_port())
    group = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [group | {"RANK": str(rank)} for rank in range(world_size)]


def start_ranks(*words: str, world_size: int = 2) -> list[subprocess.Popen[str]]:
    """Start the ranks of a run with the words of a Python; each says all on its stdout."""
    return [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=os.environ | rank,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ranks_here(world_size)
    ]


def end_well(processes: list[subprocess.Popen[str]], *, within_s: float = 240) -> list[str]:
    """Wait for ranks, which must end with 0; what each said."""
    said = [process.communicate(timeout=within_s)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(said), said
    return said


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
