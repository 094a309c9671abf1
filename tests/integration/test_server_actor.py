"""The actor serves what the plain server serves, and leaves nothing behind."""

import os
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
from ray._private.internal_api import get_memory_info_reply, get_state_from_address

from pipeline.client import RowClient, ServeError
from pipeline.layout import Layout
from pipeline.rows import advance
from pipeline.server import RowServer
from pipeline.server_actor import ActorReader, RowServerActor
from tests.streams import Positions, assert_equal_batches, walk

pytestmark = pytest.mark.usefixtures("ray_on_this_machine")
LENGTHS = [(37 * i) % 400 + 1 for i in range(60)]
LAYOUT = Layout(rows=8, segment=64, seed=3)
open_documents = partial(Positions, LENGTHS)


def pid_of(reader: ActorReader) -> int:
    """The process of its actor."""
    return ray.get(reader._actor.__ray_call__.remote(lambda _: os.getpid()), timeout=60)


def test_the_actor_is_the_server() -> None:
    server = RowServer(open_documents(), LAYOUT)
    actor = RowServerActor.remote(open_documents, LAYOUT)  # ends with this name
    state = server.initial_state()
    for count, rows in ((1, (0, 8)), (5, (2, 4)), (16, (0, 8)), (16, (0, 8)), (16, (0, 8))):
        served = ray.get(actor.read.remote(state, count, rows), timeout=60)
        direct = server.read(state, count, rows)
        assert (served.steps, served.after) == (direct.steps, direct.after)
        for index in range(served.steps):
            assert_equal_batches(served.batch(index), direct.batch(index))
        state = served.after


@pytest.mark.parametrize("rows", [(0, 8), (4, 6)])
def test_a_client_of_an_actor_gives_the_stream_from_anywhere(rows: tuple[int, int]) -> None:
    server = RowServer(open_documents(), LAYOUT)
    start = advance(server.lengths, LAYOUT, server.initial_state(), 100)
    threads = threading.active_count()
    reader = ActorReader(open_documents, LAYOUT, rows)
    client = RowClient(server, state=start, rows=rows, reader=reader, warn=pytest.fail, block=16)
    while client.steps_read == 0:  # until the actor has answered steps are read in process
        client.next()
        time.sleep(0.01)
    for expected, state in walk(server, client.state, 200, rows):
        batch, after = client.next()
        assert_equal_batches(batch, expected)
        assert after == state
    assert client.steps_read == 201
    pid = pid_of(reader)
    client.close()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()
    assert threading.active_count() <= threads + 1  # Ray's own


def test_an_error_in_the_actor_is_the_error_of_the_same_read_here() -> None:
    broken = partial(Positions, LENGTHS[:5])  # fewer documents than rows
    reader = ActorReader(broken, LAYOUT, (0, 8))
    server = RowServer(open_documents(), LAYOUT)
    handle = reader.submit(server.initial_state(), 4)
    with pytest.raises(ServeError, match="DataError"):
        reader.result(handle, 60)
    reader.close()


def test_memory_and_object_store_stay_flat() -> None:
    layout = Layout(rows=32, segment=512, seed=3)
    server = RowServer(open_documents(), layout)
    reader = ActorReader(open_documents, layout, (0, 32))
    client = RowClient(
        server, state=server.initial_state(), rows=(0, 32), reader=reader, warn=pytest.fail
    )
    while client.steps_read < 200:
        client.next()
    resident = resident_bytes()
    for _ in range(800):  # 52 MB of tokens
        client.next()
    assert client.steps_read == 1000
    # Ray frees what nobody holds with a delay; what is in hand are three blocks of 1.2 MB.
    by = time.monotonic() + 20
    while object_store_bytes() > 12_000_000 and time.monotonic() < by:
        time.sleep(0.2)
    assert object_store_bytes() < 12_000_000
    assert resident_bytes() - resident < 30_000_000
    client.close()


def test_a_full_object_store_changes_no_batch() -> None:
    layout = Layout(rows=32, segment=512, seed=3)
    server = RowServer(open_documents(), layout)
    start = server.initial_state()
    reader = ActorReader(open_documents, layout, (0, 32))
    client = RowClient(server, state=start, rows=(0, 32), reader=reader, warn=lambda _: None)
    while client.steps_read == 0:
        client.next()
        time.sleep(0.01)
    held = []  # looked at, and so neither freed nor moved to disk
    while object_store_bytes() < 180_000_000 and len(held) < 20:
        held.append(ray.get(ray.put(np.ones(19_000_000, np.uint8))))
    assert object_store_bytes() >= 180_000_000
    began = client.steps_read
    for expected, state in walk(server, client.state, 400, (0, 32)):
        batch, after = client.next()
        assert_equal_batches(batch, expected)
        assert after == state
    assert client.steps_read - began > 0
    client.close()


def test_ten_thousand_steps_leave_nothing_behind_in_either_process() -> None:
    """Few tokens a step, so that what a step leaves shows: 1 kB each would be 8 MB here."""
    layout = Layout(rows=2, segment=8, seed=3)
    server = RowServer(open_documents(), layout)
    reader = ActorReader(open_documents, layout, (0, 2))
    client = RowClient(
        server, state=server.initial_state(), rows=(0, 2), reader=reader, warn=pytest.fail
    )
    while client.steps_read == 0:
        client.next()
        time.sleep(0.01)
    pids = (os.getpid(), pid_of(reader))
    seen: dict[int, list[int]] = {pid: [] for pid in pids}
    for step in range(10_000):
        client.next()
        if step >= 2_000 and step % 500 == 0:  # warm by then
            for pid in pids:
                seen[pid].append(resident_bytes(pid))
    assert client.steps_read > 9_000
    for pid in pids:
        first, last = sorted(seen[pid][:5])[2], sorted(seen[pid][-5:])[2]
        assert last - first < 4_000_000, f"{pid}: {seen[pid]}"
    client.close()


def object_store_bytes() -> int:
    """What lies in the object store."""
    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    return get_memory_info_reply(state).store_stats.object_store_bytes_used


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process alone, without the object store that it maps."""
    told = Path(f"/proc/{pid}/status").read_text()
    status = dict(line.split(":", 1) for line in told.splitlines())
    return int(status["RssAnon"].split()[0]) * 1024
