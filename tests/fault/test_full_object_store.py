"""An object store that is full: rows are read in the worker, and that is told once."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import tests.ray_here  # first: Ray reads its settings when imported  # noqa: F401
from pipeline.client import RowClient
from pipeline.layout import Layout
from pipeline.server import RowServer
from tests.streams import Positions, assert_equal_batches, walk

LAYOUT = Layout(rows=32, segment=512, seed=3)  # a block of 16 steps is half a megabyte
STORE_BYTES = 80_000_000  # about the least that Ray takes
open_documents = partial(Positions, [(37 * i) % 400 + 1 for i in range(60)])


@pytest.fixture(scope="module", autouse=True)
def _small_ray() -> Iterator[None]:
    """A Ray whose object store may not spill to the disk."""
    import ray

    folder = tempfile.mkdtemp(prefix="lr")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=STORE_BYTES,
        _temp_dir=folder,
        _system_config={
            "automatic_object_spilling_enabled": False,
            "local_fs_capacity_threshold": 0.001,
        },
    )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def fill_the_store() -> list[Any]:
    """Objects that leave no room for a block; the last of them is still waiting for its place."""
    import ray

    @ray.remote(num_cpus=0)
    def zeros(size: int) -> Any:
        return np.zeros(size, np.uint8)

    kept: list[Any] = []
    for size in (4_000_000, 300_000):
        while True:
            kept.append(zeros.remote(size))
            if not ray.wait([kept[-1]], timeout=3)[0]:
                break
        assert len(kept) > 15
        if size > 1_000_000:
            ray.cancel(kept.pop(), force=True)
    return kept


def test_the_stream_goes_on_byte_for_byte_and_the_actor_serves_again_when_there_is_room() -> None:
    from pipeline.server_actor import ActorReader

    server = RowServer(open_documents(), LAYOUT)
    told: list[str] = []
    client = RowClient(
        server,
        state=server.initial_state(),
        rows=(0, 32),
        reader=ActorReader(open_documents, LAYOUT, (0, 32)),
        warn=told.append,
        deadline_s=1.5,
        start_s=10.0,
    )
    stream = walk(server, server.initial_state(), 1_000_000, (0, 32))
    waits: list[float] = []

    def take(steps: int) -> None:
        for _ in range(steps):
            started = time.monotonic()
            batch, state = client.next()
            waits.append(time.monotonic() - started)
            expected, expected_state = next(stream)
            assert_equal_batches(batch, expected)
            assert state == expected_state

    while client.steps_read < 50:
        take(1)
        time.sleep(0.005)
    kept = fill_the_store()
    take(60)  # what is in hand
    before = client.steps_read
    take(200)
    assert client.steps_read == before, "the store was not full"
    assert client.fallbacks == len(told) == 1
    assert "gave no answer" in told[0]
    assert max(waits) < 1.5 + 2.0
    kept.clear()
    back_by = time.monotonic() + 90
    while client.steps_read < before + 50:
        assert time.monotonic() < back_by, "the actor never came back"
        take(1)
        time.sleep(0.02)
    assert len(told) == 1
    client.close()
