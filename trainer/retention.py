"""Which checkpoints stay: the newest, every n-th, the best, and those that somebody pinned.

A checkpoint is pinned by the empty file `pinned` in its folder, which no manifest lists. It is
looked at when a newer checkpoint has been committed, and at no other time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint import living, step_of
from trainer.run_folder import Attempt
from trainer.settings import CheckpointSettings

PINNED = "pinned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A committed checkpoint, as far as it matters for keeping it.

    Attributes:
        path: Its folder.
        step: Its step.
        pinned: Whether somebody wants it kept.
        value: What the evaluation at its step found, lower is better; None where there was none.
    """

    path: Path
    step: int
    pinned: bool
    value: float | None


def superfluous(candidates: Sequence[Candidate], keep: CheckpointSettings) -> list[Path]:
    """What may go.

    Args:
        candidates: All committed checkpoints, oldest first.
        keep: What to keep.
    """
    scored = [one for one in candidates if one.value is not None and not math.isnan(one.value)]
    # Of equal values the earlier one is the better: it took fewer steps.
    best = sorted(scored, key=lambda one: (one.value, one.step))[: keep.keep_best]
    stays = {one.path for one in [*candidates[-keep.keep_last :], *best]}
    return [
        one.path
        for one in candidates
        if one.path not in stays
        and not one.pinned
        and not (keep.keep_every and one.step % keep.keep_every == 0)
    ]


def drop_old(
    folder: Path,
    attempts: Sequence[Attempt],
    *,
    keep: CheckpointSettings,
    value_of: Callable[[int], float | None],
    remove: Callable[[Path], None],
    may_go_on: Callable[[], None] = lambda: None,
) -> None:
    """Remove the superfluous of the living checkpoints in `folder`; dead ones stay.

    Args:
        folder: A run's checkpoints.
        attempts: All of the run, which tell the living from the dead.
        keep: What to keep.
        value_of: What the evaluation at a step found, lower is better.
        remove: Removes one.
        may_go_on: Asked before each is removed; it raises to end it.
    """
    candidates = [
        Candidate(
            path=path,
            step=step_of(path),
            pinned=(path / PINNED).exists(),
            value=value_of(step_of(path)),
        )
        for path in living(folder, attempts)
    ]
    for path in superfluous(candidates, keep):
        may_go_on()
        if (path / PINNED).exists():  # since it was looked at; `longrow pin` looks in its turn
            continue
        remove(path)
