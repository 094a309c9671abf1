"""Batches as the trainer's loop takes them: from an actor, and read in its own process."""

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jobs.bench_store import bench_store
from jobs.bench_timing import Say, in_turns, machine, ratio, spread
from jobs.cluster import local_ray
from pipeline.client import RowClient
from pipeline.layout import Layout
from pipeline.server import RowServer
from pipeline.server_actor import ActorReader
from pipeline.store import Store


def measure_serve(
    inputs: Sequence[str],
    *,
    tokenizer: str = "",
    layout: Layout | None = None,
    steps: int = 256,
    step_s: float = 0.02,
    repeats: int = 5,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Serve `steps` steps, as fast as they come, and to a loop whose steps take `step_s`.

    Args:
        inputs: The corpus.
        tokenizer: File or URL; empty takes plain bytes.
        layout: Rows and segment.
        steps: Served in a turn.
        step_s: Seconds of a step of the loop that may have to wait.
        repeats: Of every measurement.
        say: Told what is being measured.
    """
    layout = layout or Layout(rows=64, segment=512)
    with tempfile.TemporaryDirectory(prefix="longrow-bench-") as folder:
        say("building a store")
        store = bench_store(inputs, tokenizer=tokenizer, folder=Path(folder))
        server = RowServer(Store.open(store), layout)
        rows = (0, layout.rows)
        waits: dict[str, list[float]] = {"actor": [], "in place": []}

        def serve(client: RowClient, pause_s: float = 0.0) -> None:
            for _ in range(steps):
                time.sleep(pause_s)
                client.next()

        def open_client(reader: ActorReader | None) -> RowClient:
            return RowClient(
                server, reader=reader, state=server.initial_state(), rows=rows, warn=say
            )

        with local_ray(num_cpus=1):
            clients = {
                "actor": open_client(ActorReader(partial(Store.open, store), layout, rows)),
                "in place": open_client(None),
            }
            try:
                found = in_turns(
                    {name: partial(serve, client) for name, client in clients.items()},
                    repeats=repeats,
                    say=say,
                )
                for turn in range(repeats):
                    say(f"a loop of {step_s * 1000:.0f} ms a step, turn {turn + 1}")
                    for name, client in clients.items():
                        waits[name].append(wait_share(client, partial(serve, client, step_s)))
            finally:
                for client in clients.values():
                    client.close()
    figures = [
        {
            "name": f"served {name}",
            "rows": layout.rows,
            "segment": layout.segment,
            "steps_per_second": steps / spread(found[name]).median,
            "wait_share": spread(waits[name]).median,
            "beside": "in place",
            **ratio(found["in place"], found[name]),
        }
        for name in clients
    ]
    return {
        "machine": machine(),
        "repeats": repeats,
        "steps": steps,
        "step_seconds": step_s,
        "figures": figures,
    }


def wait_share(client: RowClient, act: Callable[[], object]) -> float:
    """Share of the time of `act` in which the client waited."""
    before_s, began_s = client.waited_s, time.perf_counter()
    act()
    return (client.waited_s - before_s) / (time.perf_counter() - began_s)
