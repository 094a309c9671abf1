"""The row server in a process of its own: the actor, and what a client asks it through."""

from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.block import Block
from pipeline.client import ServeError
from pipeline.growing_server import serve
from pipeline.layout import Layout
from pipeline.rows_state import RowsState
from pipeline.server import NotBuiltYetError, ReadAhead, TrainDocuments


@ray.remote(num_cpus=0, max_restarts=0)  # restarted by its reader, which knows when it hangs, too
class RowServerActor:
    """RowServer behind Ray: every method is one line."""

    def __init__(self, open_documents: Callable[[], TrainDocuments], layout: Layout) -> None:
        self._server = ReadAhead(serve(open_documents(), layout))

    @ray.method  # gives the type checker its signature
    def read(self, state: RowsState, count: int, rows: tuple[int, int]) -> Block:
        return self._server.read(state, count, rows)


class ActorReader:
    """A client's reader: an actor of its own on its own node, that dies with this process."""

    def __init__(
        self, open_documents: Callable[[], TrainDocuments], layout: Layout, rows: tuple[int, int]
    ) -> None:
        """Start the actor; waits for nothing.

        Args:
            open_documents: Opens the store, called in the actor: `partial(Store.open, url)`.
            layout: The rows.
            rows: [lo, hi) to ask for.
        """
        self._open_documents, self._layout, self._rows = open_documents, layout, rows
        self._actor: Any = self._start()

    def submit(self, state: RowsState, count: int) -> Any:
        """Ask for steps; returns the reference to the answer."""
        self._check_ray()
        return self._actor.read.remote(state, count, self._rows)

    def result(self, handle: Any, timeout_s: float) -> Block | None:
        """The answer, or None when it is not there in time.

        Raises:
            ServeError: The actor died, or failed.
            NotBuiltYetError: It found that the documents are not there yet.
        """
        self._check_ray()
        try:
            return ray.get(handle, timeout=timeout_s)
        except GetTimeoutError:
            return None
        except RayError as error:
            if isinstance(getattr(error, "cause", None), NotBuiltYetError):
                raise NotBuiltYetError from None
            raise ServeError(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error

    def restart(self) -> None:
        """End the actor, one that hangs too (Ray kills it after 5 s), and start another."""
        self._check_ray()
        ray.kill(self._actor)
        self._actor = self._start()

    def close(self) -> None:
        """End the actor."""
        if ray.is_initialized():
            ray.kill(self._actor)

    def _start(self) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return RowServerActor.options(scheduling_strategy=here).remote(
            self._open_documents, self._layout
        )

    def _check_ray(self) -> None:
        """A call without Ray would start a new one in silence."""
        if not ray.is_initialized():
            raise ServeError("Ray has been shut down in this process")
