"""Committing a checkpoint on an object store: every rank puts its files, rank 0 the manifest, last.

There is no rename there. A folder without manifest.json is no checkpoint, whatever else is in it.
"""

import json
import time
from pathlib import Path
from typing import Protocol

from trainer.remote_run import MANIFEST, RemoteRun
from trainer.run_folder import CHECKPOINTS
from trainer.snapshot import await_ranks, write_manifest

POLL_S = 0.5  # a question to the store each time


class MayGoOn(Protocol):
    """Raises if the save is to end; looks again if it must be known now."""

    def __call__(self, *, now: bool = False) -> None: ...


def put_part(run: RemoteRun, part: Path, target: Path, *, rank: int) -> None:
    """Put this rank's files from `part`, then the list of them.

    Raises:
        OSError: The store refused one, several times.
    """
    listing = part / f"rank-{rank}.json"
    for name in [*json.loads(listing.read_text(encoding="utf-8")), listing.name]:
        run.mirror.put(_name(target, name), part / name)


def commit_there(
    run: RemoteRun,
    part: Path,
    target: Path,
    *,
    world_size: int,
    deadline_s: float,
    may_go_on: MayGoOn,
) -> None:
    """Wait for the lists of all ranks, and put the manifest of what they list.

    The metric lines up to the checkpoint are there before it.

    Raises:
        TimeoutError: A rank's files did not come in time.
        OSError: The store refused.
    """

    def look() -> None:
        for rank in range(world_size):
            name = f"rank-{rank}.json"
            if not (part / name).exists():
                data = run.mirror.read(_name(target, name))
                if data is not None:
                    (part / name).write_bytes(data)
        time.sleep(POLL_S)

    await_ranks(part, world_size=world_size, deadline_s=deadline_s, may_go_on=may_go_on, look=look)
    write_manifest(part, world_size=world_size)
    run.put_lines()
    may_go_on(now=True)
    run.mirror.put(_name(target, MANIFEST), part / MANIFEST)
    run.refresh(CHECKPOINTS)


def _name(target: Path, name: str) -> str:
    return f"{CHECKPOINTS}/{target.name}/{name}"
