"""The rows of a rank, batch by batch, for the trainer's loop: never wrong, and never late for long.

Blocks come from a reader, usually an actor. While it starts, and when it dies or misses its
deadline, the client reads the same rows in its own process from the state it holds; so the stream
is the same byte for byte, whatever happens to the reader. Where documents are still being built, it
waits for these and not for the reader.

One call is in flight. A reader works on one block at a time and, while it travels, already on the
one that follows (ReadAhead), so a second call would wait behind the first; what it could win is the
travel of a block, 1-2 ms in 16 steps. Two blocks in hand are what makes up for a slow answer: an
answer may take as long as two blocks of steps before a step waits (tests/property/test_client.py).
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.batch import Batch
from pipeline.block import Block
from pipeline.rows import state_after
from pipeline.rows_state import RowsState
from pipeline.server import NotBuiltYetError, Server

BLOCKS_AHEAD = 2  # asked for or waiting, beyond the one that is being consumed
LONGEST_PAUSE_S = 30.0
ASK_AGAIN_S = 0.25  # after the answer that the next step is not built yet
SLOW_S = 10.0  # a wait that the person is told of ...
TELL_AGAIN_S = 60.0  # ... but not more often than so


class ServeError(RuntimeError):
    """A reader has died or cannot be asked."""


class Reader(Protocol):
    """Where blocks come from; no method but `result` may wait."""

    def submit(self, state: RowsState, count: int, /) -> Any:
        """Ask for up to `count` steps from `state`; returns a handle. May raise ServeError."""
        ...

    def result(self, handle: Any, timeout_s: float, /) -> Block | None:
        """The answer; None when it is not there in time.

        Raises:
            ServeError: It never will be.
            NotBuiltYetError: It is that the documents are not built yet.
        """
        ...

    def restart(self) -> None:
        """End what answers and start it anew. May raise ServeError."""
        ...

    def close(self) -> None:
        """End what answers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A block asked for."""

    handle: Any
    step: int
    asked_at: float


class RowClient:
    """Takes the blocks in, gives the batches out, and the state after each.

    Attributes:
        waited_s: Seconds from when a batch was first wanted, by `ready` or `next`, until it was
            given, over all batches.
        fallbacks: Times the reader was given up and started again.
        steps_read: Batches that came from the reader; the others were read here.
    """

    def __init__(  # noqa: PLR0913 - each is a value of its own
        self,
        server: Server,
        *,
        state: RowsState,
        rows: tuple[int, int],
        warn: Callable[[str], None],
        reader: Reader | None = None,
        block: int = 16,
        deadline_s: float = 5.0,
        start_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask for the first block; waits for nothing.

        Args:
            server: The same rows in this process.
            state: Where to start.
            rows: [lo, hi) of this rank.
            warn: Told, in one sentence, each time the reader is lost, and of long waits.
            reader: Who to ask; without one every block is read here.
            block: Steps to ask for at a time.
            deadline_s: Seconds that a reader which has answered before may take to answer.
            start_s: Seconds that one may take which has just been started.
            clock: Seconds.
        """
        self._server, self._reader, self._rows = server, reader, rows
        self._block, self._deadline_s, self._start_s = block, deadline_s, start_s
        self._warn, self._clock = warn, clock
        self._state = state  # consumed
        self._horizon = state  # after the last block in hand
        self._hand: deque[tuple[Block, int, bool]] = deque()  # block, next index, from the reader
        self._call: Call | None = None
        self._answering = False  # the reader has answered since it was started
        self._losses = 0  # in a row
        self._start_at = 0.0  # when the reader is to be started again
        self._dead = False  # and until then it is not asked
        self._ask_at = 0.0  # nor before this: what comes next was not built
        self._wanted_at: float | None = None  # when the next batch was first asked for
        self._tell_at = 0.0  # no word of a wait before
        self.waited_s = 0.0
        self.fallbacks = 0
        self.steps_read = 0
        self._ask()

    @property
    def state(self) -> RowsState:
        """The state after the last batch that `next` gave; what is ready beyond it is not in it."""
        return self._state

    def ready(self) -> bool:
        """Whether `next` would give a batch without waiting for the reader, or for a build.

        Does not wait.

        Raises:
            DataError: A document that was built is damaged.
        """
        self._want()
        self._poll(0.0)
        if self._hand:
            return True
        if not self._answering and self._server.ready(self._horizon):
            return True
        self._tell_of_wait("its documents are still being built, or its row server is slow")
        return False

    def next(self) -> tuple[Batch, RowsState]:
        """The next batch and the state after it.

        Raises:
            DataError: The documents are not those of the state, or a document is damaged.
            NotBuiltYetError: They are still being built: `ready` says when they are there.
        """
        started = self._want()
        self._poll(0.0)
        while not self._hand:
            if call := self._waiting():
                self._poll(max(0.0, self._deadline(call) - self._clock()))
            else:
                self._take(self._server.read(self._horizon, self._block, self._rows), read=False)
        self._tell_of_wait("its documents come slowly from where the store lies")
        block, index, read = self._hand.popleft()
        if index + 1 < block.steps:
            self._hand.appendleft((block, index + 1, read))
        batch = block.batch(index)
        self._state = state_after(self._state, block.reading(index))
        self.steps_read += read
        self._ask()
        self.waited_s += self._clock() - started
        self._wanted_at = None
        return batch, self._state

    def close(self) -> None:
        """End the reader and let go of its blocks; `next` goes on in this process."""
        self._call = None
        self._hand.clear()
        self._horizon = self._state
        reader, self._reader = self._reader, None
        if reader:
            reader.close()

    def _want(self) -> float:
        """When the next batch was first asked for: now, if it was not before."""
        if self._wanted_at is None:
            self._wanted_at = self._clock()
        return self._wanted_at

    def _tell_of_wait(self, why: str) -> None:
        now, since = self._clock(), self._want()
        if now - since >= SLOW_S and now >= self._tell_at:
            self._tell_at = now + TELL_AGAIN_S
            self._warn(
                f"Step {self._state.step} of rows {self._rows[0]}-{self._rows[1] - 1} has waited "
                f"{now - since:.0f} s: {why}."
            )

    def _waiting(self) -> Call | None:
        """The call worth waiting for: none while the reader is starting."""
        return self._call if self._answering else None

    def _deadline(self, call: Call) -> float:
        return call.asked_at + (self._deadline_s if self._answering else self._start_s)

    def _ask(self) -> None:
        """Ask for the block that follows those in hand, if it is time to."""
        if self._reader is None or self._call or len(self._hand) > BLOCKS_AHEAD:
            return
        if self._clock() < self._ask_at:
            return
        try:
            if self._dead:
                if self._clock() < self._start_at:
                    return
                self._reader.restart()
                self._dead = False
            handle = self._reader.submit(self._horizon, self._block)
        except ServeError as error:
            self._lose(str(error))
            return
        self._call = Call(handle=handle, step=self._horizon.step, asked_at=self._clock())

    def _poll(self, timeout_s: float) -> None:
        """Take in what has arrived, or arrives in time, and ask for what follows it."""
        if self._reader is None:
            return
        self._ask()
        if self._call is None:
            return
        try:
            block = self._reader.result(self._call.handle, timeout_s)
        except ServeError as error:
            self._lose(str(error))
            return
        except NotBuiltYetError:
            self._call, self._answering, self._losses = None, True, 0
            self._ask_at = self._clock() + ASK_AGAIN_S
            return
        if block is None:
            if self._clock() >= self._deadline(self._call):
                self._lose(f"it gave no answer for {self._clock() - self._call.asked_at:.1f} s")
            return
        if (block.step, block.rows) != (self._call.step, self._rows) or not block.steps:
            self._lose(
                f"asked for step {self._call.step} of rows {self._rows} it answered with "
                f"{block.steps} steps from {block.step} of rows {block.rows}"
            )
            return
        self._call = None
        self._answering, self._losses = True, 0
        self._take(block, read=True)
        self._ask()

    def _take(self, block: Block, *, read: bool) -> None:
        """Put in hand what is new of a block: some of its steps may have been read here by now."""
        index = self._horizon.step - block.step
        if index < block.steps:
            self._hand.append((block, index, read))
            self._horizon = block.after

    def _lose(self, why: str) -> None:
        """Give the reader up: tell once, start it again, and read here until it answers."""
        self._call = None
        if self._losses == 0:
            self.fallbacks += 1
            self._warn(
                f"The row server of rows {self._rows[0]}-{self._rows[1] - 1} is lost at step "
                f"{self._state.step}: {why}. Its rows are read in this process until it answers "
                "again; the data stay the same."
            )
        pause_s = min(2.0**self._losses - 1, LONGEST_PAUSE_S)  # 0, 1, 3, 7 ...
        self._answering, self._dead = False, True
        self._losses += 1
        self._start_at = self._clock() + pause_s
