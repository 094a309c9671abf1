"""Rows of a store that is still being built: the steps whose documents are there.

A row reads documents in the order they are dealt, and in store order (`shuffle = "none"`) a step
needs the lengths of the documents dealt up to it and of no others. So from a beginning of the
store the first steps come out as they will from the whole. How many documents there are counts
only where an epoch ends: there a row waits until the store is finished.
"""

from pipeline.block import Block
from pipeline.growing import GrowingStore
from pipeline.layout import Layout
from pipeline.rows import advance
from pipeline.rows_state import RowsState, initial_state
from pipeline.server import Documents, NotBuiltYetError, RowServer, Server

GROWING_ORDERS = ("none",)  # orders in which what comes later changes nothing that was before


class GrowingServer:
    """A RowServer of what is there so far."""

    def __init__(self, documents: GrowingStore, layout: Layout) -> None:
        self._documents, self._layout = documents, layout
        self._server: RowServer | None = None
        self._known = (0, False)  # parts that it serves, and whether these are all
        self._short_of: tuple[int, int] | None = None  # a step that was not there, parts then

    @property
    def layout(self) -> Layout:
        """The rows it serves."""
        return self._layout

    def initial_state(self) -> RowsState:
        """Before the first step."""
        return initial_state(self._layout)

    def ready(self, state: RowsState) -> bool:
        """Whether the step after `state` is there."""
        try:
            self._ready_steps(state, 1)
        except NotBuiltYetError:
            return False
        return True

    def read(self, state: RowsState, count: int, rows: tuple[int, int]) -> Block:
        """As `RowServer.read`, of the steps that are there.

        Raises:
            NotBuiltYetError: None is.
            DataError, RowsError: As `RowServer.read`.
        """
        server, steps = self._ready_steps(state, count)
        return server.read(state, steps, rows)

    def digest_of_next(self, state: RowsState) -> str:
        """As `RowServer.digest_of_next`; empty while that step is not there."""
        return self._ready_steps(state, 1)[0].digest_of_next(state) if self.ready(state) else ""

    def _ready_steps(self, state: RowsState, count: int) -> tuple[RowServer, int]:
        """A server of what is there, and how many steps from `state` on, up to `count`, it has."""
        server, known, whole = self._newest()
        if whole:
            return server, count
        lengths, rows = server.lengths, self._layout.rows
        here = len(lengths.doc_id)
        if (state.step, known) != self._short_of and here >= rows and _covers(server, state):
            steps = count
            while steps:  # an epoch that has ended is one whose end nobody knows yet
                after = advance(lengths, self._layout, state, steps)
                if after.sources[0].epoch == 0:
                    return server, steps
                steps //= 2
        self._short_of = (state.step, known)
        raise NotBuiltYetError(f"step {state.step} needs more than the first {known} parts")

    def _newest(self) -> tuple[RowServer, int, bool]:
        """A server of all documents that are known, the number of parts, whether that is all."""
        with self._documents.lock:  # nothing may come between its numbers and its lengths
            self._documents.grow()
            known = self._documents.num_parts
            whole = self._documents.whole is not None
            if self._server is None or self._known != (known, whole):
                self._server, self._known = RowServer(self._documents, self._layout), (known, whole)
            return self._server, known, whole


def serve(documents: Documents, layout: Layout) -> Server:
    """The server of a store, finished or not."""
    if isinstance(documents, GrowingStore):
        return GrowingServer(documents, layout)
    return RowServer(documents, layout)


def _covers(server: RowServer, state: RowsState) -> bool:
    """Whether all that was dealt up to `state` is known: another process may have seen more."""
    source, known = state.sources[0], server.lengths.doc_id
    return source.epoch == 0 and source.next_index < len(known) and state.doc_id.max() <= known[-1]
