"""The actor is killed and frozen in the middle of a run: the stream stays, the wait is bounded."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.client import RowClient
from pipeline.layout import Layout
from pipeline.server import RowServer
from tests.ray_here import ray_session
from tests.streams import Positions, assert_equal_batches, walk

LAYOUT = Layout(rows=8, segment=64, seed=3)
ROWS = (2, 6)
open_documents = partial(Positions, [(37 * i) % 400 + 1 for i in range(60)])


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    yield from ray_session()


@pytest.mark.parametrize(
    ("blow", "longest_s"), [(signal.SIGKILL, 4.0), (signal.SIGSTOP, 8.0)], ids=["KILL", "STOP"]
)
def test_the_stream_goes_on_byte_for_byte_and_the_actor_comes_back(
    blow: signal.Signals, longest_s: float
) -> None:
    from pipeline.server_actor import ActorReader

    def take(batches: int) -> None:
        for _ in range(batches):
            started = time.monotonic()
            batch, state = client.next()
            waits.append(time.monotonic() - started)
            expected, expected_state = next(stream)
            assert_equal_batches(batch, expected)
            assert state == expected_state

    server = RowServer(open_documents(), LAYOUT)
    stream = walk(server, server.initial_state(), 1_000_000, ROWS)
    reader = ActorReader(open_documents, LAYOUT, ROWS)
    waits: list[float] = []
    warnings: list[str] = []
    client = RowClient(
        server, state=server.initial_state(), rows=ROWS, reader=reader, warn=warnings.append
    )
    hit: set[int] = set()
    for blows in (1, 2):
        served, pid = client.steps_read, pid_of(reader)
        while client.steps_read < served + 100:  # it serves, by its own answers
            take(1)
            time.sleep(0.002)
        os.kill(pid, blow)
        hit.add(pid)
        take(100)  # more than is in hand: the blow is felt
        assert (len(warnings), client.fallbacks) == (blows, blows)
    served, read_here = client.steps_read, client.state.step - client.steps_read
    assert read_here > 0
    back_by = time.monotonic() + 60
    while client.steps_read < served + 100:
        assert time.monotonic() < back_by, "the actor never came back"
        take(1)
        time.sleep(0.002)
    assert pid_of(reader) not in hit
    assert len(hit) == 2
    assert max(waits) < longest_s
    assert sum(waits) >= client.waited_s * 0.9
    client.close()
    assert_gone(hit)  # a frozen one too


def pid_of(reader: Any) -> int:
    """The process of its actor."""
    import ray

    return ray.get(reader._actor.__ray_call__.remote(lambda _: os.getpid()), timeout=60)


def assert_gone(pids: set[int]) -> None:
    by = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < by, "an old actor was left behind"
        time.sleep(0.1)
