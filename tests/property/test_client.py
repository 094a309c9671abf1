"""Whatever its reader does, a client gives the same stream, waits within bounds and warns once."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.block import Block
from pipeline.client import BLOCKS_AHEAD, RowClient, ServeError
from pipeline.errors import DataError
from pipeline.layout import Layout
from pipeline.rows_state import RowsState
from pipeline.server import ReadAhead, RowServer
from tests.streams import Positions, assert_equal_batches, corpora, runs, walk

Run = tuple[Positions, Layout]
# What the reader may do with a call: answer now, after some looks, never, die, or answer wrongly.
FATES = ["now", "now", "late", "never", "dies", "refuses", "wrong step", "wrong rows"]


@dataclass
class Clock:
    """Goes on only when somebody waits or a test says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FlakyReader:
    """A server in this process with a fate for each call; sound when the fates are used up."""

    server: RowServer
    rows: tuple[int, int]
    clock: Clock
    fates: list[str] = field(default_factory=list)
    start_fails: list[bool] = field(default_factory=list)
    starts: int = 1
    dead: bool = False
    open_calls: int = 0
    closed: bool = False

    def submit(self, state: RowsState, count: int) -> Any:
        fate = self.fates.pop(0) if self.fates else "now"
        if fate == "refuses" or self.dead:
            raise ServeError("it cannot be asked")
        self.open_calls += 1
        assert self.open_calls <= 1
        return [fate, self.clock.now + (3.0 if fate == "late" else 0.0), state, count]

    def result(self, handle: Any, timeout_s: float) -> Block | None:
        fate, there_at, state, count = handle
        if fate == "dies":
            self.dead, self.open_calls = True, 0
            raise ServeError("it died")
        if fate == "never" or there_at > self.clock.now + timeout_s:
            self.clock.now += timeout_s
            return None
        self.clock.now = max(self.clock.now, there_at)
        self.open_calls = 0
        block = self.server.read(state, count, self.rows)
        if fate == "wrong step":
            return replace(block, step=block.step + 1)
        return replace(block, rows=(-1, -1)) if fate == "wrong rows" else block

    def restart(self) -> None:
        self.open_calls, self.starts = 0, self.starts + 1
        if self.start_fails and self.start_fails.pop(0):
            raise ServeError("it cannot be started")
        self.dead = False

    def close(self) -> None:
        self.closed = True


@given(
    run=runs(),
    fates=st.lists(st.sampled_from(FATES), max_size=12),
    start_fails=st.lists(st.booleans(), max_size=4),
    block=st.integers(1, 5),
    step_s=st.sampled_from([0.0, 0.5, 4.0, 70.0]),
    ask_ready=st.booleans(),
)
def test_a_flaky_reader_changes_no_byte(
    run: Run,
    fates: list[str],
    start_fails: list[bool],
    block: int,
    step_s: float,
    ask_ready: bool,
) -> None:
    server, rows, clock = RowServer(*run), (0, run[1].rows), Clock()
    reader = FlakyReader(server, rows, clock, fates, start_fails)
    warnings: list[str] = []
    client = RowClient(
        server,
        state=server.initial_state(),
        rows=rows,
        reader=reader,
        warn=warnings.append,
        block=block,
        clock=clock,
    )
    for expected, state_after in walk(server, server.initial_state(), 60):
        clock.now += step_s
        asked_at = clock.now
        while ask_ready and not client.ready():
            assert clock.now == asked_at or clock.now - asked_at < 5.1, "never ready"
            clock.now += 0.05
        before = client.state
        began = clock.now
        batch, state = client.next()
        assert clock.now - began <= 5.0, "a step waited for longer than the deadline"
        assert not ask_ready or clock.now == began, "it was ready and waited"
        assert before.step == batch.step
        assert client.state is state
        assert_equal_batches(batch, expected)
        assert state == state_after
    assert len(warnings) == client.fallbacks <= reader.starts + len(start_fails)
    assert client.waited_s <= clock.now


def test_a_sound_reader_is_used_for_every_step_once_it_answers() -> None:
    server, clock = RowServer(Positions([5, 9, 3, 7]), Layout(rows=2, segment=4)), Clock()
    reader = FlakyReader(server, (0, 2), clock)
    warnings: list[str] = []
    client = RowClient(
        server,
        state=server.initial_state(),
        rows=(0, 2),
        reader=reader,
        warn=warnings.append,
        clock=clock,
    )
    for _ in range(100):
        client.next()
    assert client.steps_read == 100
    assert (warnings, client.fallbacks, reader.starts) == ([], 0, 1)


def test_one_death_is_one_warning_and_the_reader_is_used_again() -> None:
    server, clock = RowServer(Positions([5, 9, 3, 7]), Layout(rows=2, segment=4)), Clock()
    reader = FlakyReader(server, (0, 2), clock, ["now", "dies", "never"], [True, True])
    warnings: list[str] = []
    client = RowClient(
        server,
        state=server.initial_state(),
        rows=(0, 2),
        reader=reader,
        warn=warnings.append,
        block=4,
        clock=clock,
    )
    for _ in range(200):
        clock.now += 1
        client.next()
    assert len(warnings) == client.fallbacks == 1
    assert "step 1: it died" in warnings[0]
    assert reader.starts == 5  # at first, two that failed, one that never answered, the sound one
    assert 100 < client.steps_read < 140  # the rest was read in process


def test_no_more_blocks_are_asked_for_than_agreed_and_the_state_is_what_was_consumed() -> None:
    server, clock = RowServer(Positions([5, 9, 3, 7]), Layout(rows=2, segment=4)), Clock()
    asked: list[int] = []

    class Counting(FlakyReader):
        def submit(self, state: RowsState, count: int) -> Any:
            asked.append(state.step)
            return super().submit(state, count)

    client = RowClient(
        server,
        state=server.initial_state(),
        rows=(0, 2),
        reader=Counting(server, (0, 2), clock),
        warn=pytest.fail,
        block=4,
        clock=clock,
    )
    for step in range(40):
        assert client.state.step == step
        for _ in range(5):
            assert client.ready()
        assert max(asked) <= step + BLOCKS_AHEAD * 4
        client.next()
    client.close()


@given(
    latencies=st.lists(st.floats(0.0, 0.85), min_size=1, max_size=8),  # the loop looks now and then
    burst=st.floats(0.0, 1.7),
    block=st.integers(2, 16),
    ask_ready=st.booleans(),
)
def test_one_call_in_flight_suffices_for_a_server_that_is_as_fast_as_the_loop(
    latencies: list[float], burst: float, block: int, ask_ready: bool
) -> None:
    """It may take nearly as long as its steps; a faster one, once, as those of two blocks."""
    if burst >= 1:
        latencies = [0.7 * share for share in latencies]  # 12 of them bring two blocks into hand
    server, clock = RowServer(Positions([5, 9, 3, 7]), Layout(rows=2, segment=4)), Clock()
    step_s = 0.05
    calls: list[float] = []

    class Slow(FlakyReader):
        def submit(self, state: RowsState, count: int) -> Any:
            number = len(calls)
            share = burst if number == 12 else latencies[number % len(latencies)]
            calls.append(share * block * step_s)
            return [calls[-1] + clock.now, *super().submit(state, count)[2:]]

        def result(self, handle: Any, timeout_s: float) -> Block | None:
            there_at, state, count = handle
            return super().result(["late", there_at, state, count], timeout_s)

    client = RowClient(
        server,
        state=server.initial_state(),
        rows=(0, 2),
        reader=Slow(server, (0, 2), clock),
        warn=pytest.fail,
        block=block,
        deadline_s=1e9,
        clock=clock,
    )
    at_start = 0.0
    for step in range(40 * block):
        while ask_ready and not client.ready():
            clock.now += 0.01
        client.next()
        clock.now += step_s
        if step == 4 * block:  # it had to start
            at_start = client.waited_s
    assert len(calls) > 30
    assert client.waited_s == pytest.approx(at_start)


def test_a_wait_for_documents_that_are_being_built_is_counted_and_told_now_and_then() -> None:
    class Built(RowServer):
        there_at = 0.0

        def ready(self, _state: RowsState, /) -> bool:
            return clock.now >= self.there_at

    clock = Clock()
    server = Built(Positions([5, 9, 3, 7]), Layout(rows=2, segment=4))
    told: list[str] = []
    client = RowClient(
        server, state=server.initial_state(), rows=(0, 2), warn=told.append, block=1, clock=clock
    )
    client.next()
    for wait_s, words in ((5.0, 0), (100.0, 2), (20.0, 0), (200.0, 4)):
        told.clear()
        before, server.there_at = client.waited_s, clock.now + wait_s
        while not client.ready():
            clock.now += 0.05
        client.next()
        assert client.waited_s - before == pytest.approx(wait_s, abs=0.1)
        assert len(told) == words
        assert all("still being built" in one for one in told)
        clock.now += 1.0  # a step


def test_an_error_of_the_data_reaches_the_loop() -> None:
    documents = Positions([5, 9, 3, 7])
    server = RowServer(documents, Layout(rows=2, segment=4, shuffle="none"))
    client = RowClient(server, state=server.initial_state(), rows=(0, 2), warn=pytest.fail, block=1)
    client.next()
    documents.lengths[1] = 8
    before = client.state
    with pytest.raises(DataError, match=r"Document 1 .* has 8 tokens .* index says 9"):
        client.next()
    assert client.state is before


def test_a_closed_client_has_closed_its_reader_and_still_reads() -> None:
    server, clock = RowServer(Positions([5, 9, 3, 7]), Layout(rows=2, segment=4)), Clock()
    reader = FlakyReader(server, (0, 2), clock)
    client = RowClient(
        server, state=server.initial_state(), rows=(0, 2), reader=reader, warn=pytest.fail
    )
    client.next()
    client.close()
    client.close()
    assert reader.closed
    ((expected, _),) = list(walk(server, client.state, 1))
    assert_equal_batches(client.next()[0], expected)


@given(
    documents=corpora(least=3),
    calls=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=4),
)
def test_what_is_read_ahead_never_shows(documents: Positions, calls: list[tuple[int, int]]) -> None:
    server = RowServer(documents, Layout(rows=3, segment=5))
    states = [server.initial_state(), *(s for _, s in walk(server, server.initial_state(), 6))]
    ahead = ReadAhead(server)
    for step, count in calls:
        # The second call is what was read ahead, or the same steps of other rows.
        for rows, then in (((0, 3), (0, 3)), ((0, 3), (1, 2)), ((1, 2), (1, 2))):
            ours = ahead.read(states[step], count, rows)
            theirs = server.read(states[step], count, rows)
            follower = ahead.read(ours.after, count, then)
            direct = server.read(theirs.after, count, then)
            for left, right in ((ours, theirs), (follower, direct)):
                assert (left.steps, left.after) == (right.steps, right.after)
                for index in range(left.steps):
                    assert_equal_batches(left.batch(index), right.batch(index))
    ahead.close()
