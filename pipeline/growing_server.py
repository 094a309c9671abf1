"""Rows of a store that is still being built: the steps whose documents are there.

A row reads documents in the order they are dealt, and in store order (`shuffle = "none"`) a step
needs the lengths of the documents dealt up to it and of no others. So from a beginning of the
store the first steps come out as they will from the whole. How many documents there are counts
only where an epoch ends: there a row waits until the store is finished.
"""

from typing import NamedTuple

import numpy as np

from pipeline.block import Block
from pipeline.growing import GrowingStore
from pipeline.layout import Layout
from pipeline.lengths import Int64s
from pipeline.rows import advance
from pipeline.rows_state import RowsState, initial_state
from pipeline.server import NotBuiltYetError, RowServer, Server, TrainDocuments

GROWING_ORDERS = ("none",)  # orders in which what comes later changes nothing that was before


class GrowingServer:
    """A RowServer of what is there so far."""

    def __init__(self, documents: GrowingStore, layout: Layout) -> None:
        self._documents, self._layout = documents, layout
        self._server: RowServer | None = None
        self._known = _Known(0, False, np.zeros(0, np.int64))  # what it serves
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
        server, known = self._newest()
        if known.all_of_them:
            return server, count
        short_of = (state.step, known.parts)
        if short_of != self._short_of and _covers(known.doc_ids, state, self._layout):
            steps = count
            while steps:  # an epoch that has ended is one whose end nobody knows yet
                after = advance(server.lengths, self._layout, state, steps)
                if after.sources[0].epoch == 0:
                    return server, steps
                steps //= 2
        self._short_of = short_of
        raise NotBuiltYetError(f"step {state.step} needs more than the first {known.parts} parts")

    def _newest(self) -> "tuple[RowServer, _Known]":
        """A server of all documents that are known, and which these are."""
        documents = self._documents
        with documents.lock:  # nothing may come between its numbers and its lengths
            documents.grow()
            newest = (documents.num_parts, documents.whole is not None)
            if self._server is None or (self._known.parts, self._known.all_of_them) != newest:
                train = np.zeros(0, np.int64) if documents.whole else documents.doc_ids("train")
                self._known = _Known(*newest, train)
                self._server = RowServer(documents, self._layout)
            return self._server, self._known


class _Known(NamedTuple):
    """What is there of a store."""

    parts: int
    all_of_them: bool
    doc_ids: Int64s  # to train on, as long as these are not all


def serve(documents: TrainDocuments, layout: Layout) -> Server:
    """The server of a store, finished or not."""
    if isinstance(documents, GrowingStore):
        return GrowingServer(documents, layout)
    return RowServer(documents, layout)


def _covers(known: Int64s, state: RowsState, layout: Layout) -> bool:
    """Whether all that was dealt up to `state` is known: another process may have seen more."""
    source = state.sources[0]
    return (
        len(known) >= layout.rows
        and source.epoch == 0
        and source.next_index < len(known)
        and state.doc_id.max() <= known[-1]
    )
