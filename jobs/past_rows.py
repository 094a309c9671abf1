"""Where a run's rows stood: the store it read, and its anchors around a step that was taken."""

from collections.abc import Callable

from jobs.find import config_of
from jobs.visible import echo
from pipeline.anchors import Anchor, first_anchor
from pipeline.errors import DataError
from pipeline.growing import GrowingStore, open_present
from pipeline.lengths import mixed
from pipeline.rows import advance
from pipeline.store import Store
from trainer.anchors import nearest_anchor
from trainer.errors import ConfigError
from trainer.run_folder import RunFolder


def anchors_around(
    folder: RunFolder, first: int, last: int
) -> tuple[Store | GrowingStore, list[Anchor]]:
    """The store of a run, and an anchor for each stretch of the same rows in [first, last].

    Args:
        folder: The run's.
        first: Steps done before the first step that is wanted.
        last: Steps done before the last one.

    Returns:
        The first anchor is at or before `first`; each further one is where the rows were dealt
        anew (or after it, if what was kept there is damaged).

    Raises:
        ConfigError: As `anchor_of`.
        DataError: As `check_reach`.
    """
    say = _once()
    store, anchor = anchor_of(folder, last, say)
    check_reach(store, anchor, last + 1)
    found: list[Anchor] = []
    while (began := anchor.state.first_step) > first:
        _, begin = anchor_of(folder, began, say)
        found.insert(0, begin if begin.state.first_step == began else anchor)
        _, anchor = anchor_of(folder, began - 1, say)
    if anchor.state.step > first:
        _, anchor = anchor_of(folder, first, say)
    return store, [anchor, *found]


def anchor_of(
    folder: RunFolder, step: int, say: Callable[[str], None] | None = None
) -> tuple[Store | GrowingStore, Anchor]:
    """The store of a run, and a state of its rows at or before `step` steps done.

    Args:
        folder: The run's.
        step: Steps done.
        say: Is told of a damaged anchor that was passed over; standard error without it.

    Raises:
        ConfigError: The run names no store, or another store lies there now.
    """
    anchor = nearest_anchor(folder, step, say or _once())
    if anchor is None:  # a run from before there were anchors: its rows never changed
        config = config_of(folder)
        store = open_present(config.data.reads)
        sources = len(mixed(store.by_length("train")).sources)
        return store, first_anchor(
            config.rows, store=store.url, store_fingerprint=store.fingerprint, sources=sources
        )
    store = open_present(anchor.store)
    # A store that was built meanwhile had none yet; the documents are held against the state.
    if anchor.store_fingerprint not in ("", store.fingerprint):
        raise ConfigError(
            f"{anchor.store} has fingerprint {store.fingerprint[:12]}, the run read "
            f"{anchor.store_fingerprint[:12]}: the store was built anew since, and its old texts "
            "cannot be shown."
        )
    return store, anchor


def check_reach(store: Store | GrowingStore, anchor: Anchor, step: int) -> None:
    """See that a store which is being built holds what is read up to `step`, counted from 1.

    Raises:
        DataError: It does not yet.
    """
    ahead = step - anchor.state.step
    if isinstance(store, Store) or ahead <= 0:
        return
    after = advance(store.by_length("train"), anchor.layout, anchor.state, ahead).sources[0]
    if after.epoch > 0:  # it ran past what is known of the first
        raise DataError(
            f"{store.url} is still being built: its first {store.num_parts:,} parts do not "
            f"reach step {step}. Ask again later, or for an earlier step."
        )


def newest_step(folder: RunFolder) -> int:
    """The last step that the run tells of; 0 before the first."""
    return max((line["step"] for line in folder.lines() if line["kind"] == "step"), default=0)


def _once() -> Callable[[str], None]:
    """Says each sentence to a person once, however often an anchor is looked for."""
    said: set[str] = set()

    def say(sentence: str) -> None:
        if sentence not in said:
            said.add(sentence)
            echo(f"longrow: {sentence}", err=True)

    return say
