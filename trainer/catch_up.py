"""The ranks wait for a store that is being built: together, voting, and with an ear for a stop."""

import time
from pathlib import Path

from pipeline.growing import GrowingStore
from pipeline.store import Store
from trainer.board import Reporter
from trainer.checkpoint import read_state
from trainer.group import Group, Vote
from trainer.start import together

WAIT_S = 0.05


def catch_up(
    store: Store | GrowingStore, checkpoint: Path | None, group: Group, reporter: Reporter
) -> bool:
    """Wait until a store that is being built holds what `checkpoint` had seen of it.

    Returns:
        False, on all ranks, if told to stop meanwhile.

    Raises:
        DoomedError: The store cannot be used.
    """
    if isinstance(store, Store) or checkpoint is None:
        return True
    wanted = read_state(checkpoint).get("parts", {"count": 0})["count"]
    while True:
        together(group, store.grow)
        short = store.num_parts < wanted and store.whole is None
        said = group.vote(Vote(stop=bool(reporter.stop_reason()), waiting=short))
        if said.stop or not said.waiting:
            return not said.stop
        reporter.beat()
        time.sleep(WAIT_S)


def whole_store(
    store: Store | GrowingStore, group: Group, reporter: Reporter, *, wait: bool
) -> Store | None:
    """The finished store, on all ranks or on none.

    Args:
        store: As far as it was known.
        group: The ranks.
        reporter: Told that we wait; asked whether to stop.
        wait: Until it is finished.

    Returns:
        None if it is not finished, or if told to stop while it was waited for.

    Raises:
        DoomedError: The store cannot be used.
    """
    if isinstance(store, Store):
        return store
    told = False
    while True:
        together(group, store.grow)
        stop = bool(reporter.stop_reason())
        said = group.vote(Vote(stop=stop, waiting=store.whole is None))
        if not said.waiting:
            return store.whole
        if said.stop or not wait:
            return None
        if not told and group.rank == 0:
            reporter.note("All steps are done; their evaluation waits for the build to end.")
        told = True
        reporter.beat()
        time.sleep(WAIT_S)
