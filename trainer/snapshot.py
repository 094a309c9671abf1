"""Writing a checkpoint: what a rank copies to host memory, puts on disk, and rank 0 commits.

What lies in a checkpoint, and how it is found and read again, says checkpoint.py.
"""

import errno
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.memory import Memory
from pipeline.files import write_whole
from trainer.checkpoint import (
    AVERAGE,
    MANIFEST_VERSION,
    OPTIMIZER,
    WEIGHTS,
    describe_file,
    save_tensors,
    sync,
)
from trainer.errors import DivergedError

POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A rank's part of a checkpoint, copied to host memory: training may go on meanwhile.

    Attributes:
        step: Steps done.
        files: Tensors by file name, as this rank writes them.
        state: Works out what rank 0 puts into state.json; None on other ranks.
        rows: First and past-the-last global row of this rank, kept beside its memory.
    """

    step: int
    files: dict[str, dict[str, Tensor]]
    state: Callable[[], dict[str, Any]] | None
    rows: tuple[int, int]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors; state.json and the manifest are small beside them."""
        return sum(tensor.nbytes for tensors in self.files.values() for tensor in tensors.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of the memory alone; every rank has as much."""
        return sum(
            tensor.nbytes
            for name, tensors in self.files.items()
            if name.startswith("memory-")
            for tensor in tensors.values()
        )


def take_snapshot(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    memory: Memory,
    *,
    step: int,
    rank: int,
    rows: tuple[int, int],
    state: Callable[[], dict[str, Any]] | None,
    average: Sequence[Tensor] = (),
) -> Snapshot:
    """Copy what this rank will write to host memory; an empty `average` is none."""
    files = {
        f"memory-{rank}.safetensors": {
            "states": _on_host(memory.states),
            "usable": _on_host(memory.usable),
        }
    }
    if state is not None:
        files[WEIGHTS] = {name: _on_host(parameter) for name, parameter in model.named_parameters()}
        files[OPTIMIZER] = {
            f"{moment}/{name}": _on_host(value)
            for name, parameter in model.named_parameters()
            for moment, value in optimizer.state[parameter].items()
        }
        if average:
            named = zip(model.named_parameters(), average, strict=True)
            files[AVERAGE] = {name: _on_host(mean) for (name, _), mean in named}
    return Snapshot(step=step, files=files, state=state, rows=rows)


def check_finite(snapshot: Snapshot, *, last_good: Callable[[], str]) -> None:
    """Refuse to save weights or moments that no run can go on from.

    An update can be finite and enormous: the weights overflow after it, and only the next gradient
    would tell.

    Args:
        snapshot: What would be saved.
        last_good: Names the checkpoint before it, for the message; empty if there is none.

    Raises:
        DivergedError: Names the first tensor that is not finite, and how many are not.
    """
    bad = [
        f"{name} in {file}"
        for file, tensors in snapshot.files.items()
        for name, tensor in tensors.items()
        if not bool(torch.isfinite(tensor).all())
    ]
    if bad:
        raise DivergedError(
            f"Training has diverged: after step {snapshot.step}, {len(bad)} tensors are not "
            f"finite, the first is {bad[0]}. They were not saved; the last good checkpoint is "
            f"{last_good() or 'none'}. Lower optimizer.learning_rate, or set trainer.spike_factor, "
            "and go on from there."
        )


def write_part(snapshot: Snapshot, folder: Path, *, rank: int) -> None:
    """Write this rank's files into `folder`, then rank-K.json that lists them.

    Raises:
        OSError: The disk refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if snapshot.state is not None:
        write_whole(str(folder / "state.json"), json.dumps(snapshot.state(), indent=1).encode())
    for name, tensors in snapshot.files.items():
        save_tensors(tensors, folder / name, rows=snapshot.rows)
    names = [*snapshot.files, *(["state.json"] if snapshot.state is not None else [])]
    listing = {name: describe_file(folder / name) for name in names}
    write_whole(str(folder / f"rank-{rank}.json"), json.dumps(listing, indent=1).encode())


def drop_part(snapshot: Snapshot, folder: Path, *, rank: int) -> None:
    """Remove what an earlier try of this rank has left in `folder`."""
    of_rank_0 = ("state.json", "manifest.json") if snapshot.state is not None else ()
    for name in (f"rank-{rank}.json", *snapshot.files, *of_rank_0):
        (folder / name).unlink(missing_ok=True)


def check_room(folder: Path, *, size_bytes: int) -> None:
    """See that `size_bytes` more fit on the disk that holds `folder`.

    Raises:
        OSError: They do not.
    """
    free = shutil.disk_usage(folder).free
    if free < size_bytes:
        raise OSError(
            errno.ENOSPC,
            f"{free:,} bytes are free, the next checkpoint takes {size_bytes:,}; to keep fewer, "
            "lower checkpoint.keep_last and checkpoint.keep_best",
            str(folder),
        )


def commit(
    folder: Path,
    target: Path,
    *,
    world_size: int,
    deadline_s: float,
    may_go_on: Callable[[], None] = lambda: None,
) -> None:
    """Wait for all ranks' files in `folder`, write the manifest, and give it its name `target`.

    `may_go_on` is asked while it waits and just before the name is given; it raises to end it.

    Raises:
        TimeoutError: A rank's files did not come in time.
    """
    await_ranks(folder, world_size=world_size, deadline_s=deadline_s, may_go_on=may_go_on)
    write_manifest(folder, world_size=world_size)
    may_go_on()
    folder.rename(target)
    sync(target.parent)


def await_ranks(
    folder: Path,
    *,
    world_size: int,
    deadline_s: float,
    may_go_on: Callable[[], None],
    look: Callable[[], None] = lambda: None,
) -> None:
    """Wait for all ranks' files in `folder`; `look` brings what came from elsewhere.

    Raises:
        TimeoutError: A rank's files did not come in time.
    """
    listings = [folder / f"rank-{rank}.json" for rank in range(world_size)]
    end = time.monotonic() + deadline_s
    while missing := [path.name for path in listings if not path.exists()]:
        if time.monotonic() > end:
            raise TimeoutError(  # of the disk's family: the save is tried again
                f"{folder} lacks {', '.join(missing)} after {deadline_s:.0f} s. Either that rank "
                "died, or its disk is slower than that: raise cluster.hang_timeout_s, which bounds "
                "this wait too; or the run folder is not shared by all workers: set run.folder to "
                "a folder that every node sees"
            )
        may_go_on()
        time.sleep(POLL_S)
        look()


def write_manifest(folder: Path, *, world_size: int) -> None:
    """Write the manifest of what all ranks say in `folder`."""
    listings = [folder / f"rank-{rank}.json" for rank in range(world_size)]
    files: dict[str, Any] = {}
    for path in listings:
        files |= json.loads(path.read_text(encoding="utf-8")) | {path.name: describe_file(path)}
    manifest = {"version": MANIFEST_VERSION, "world_size": world_size, "files": files}
    write_whole(str(folder / "manifest.json"), json.dumps(manifest, indent=1).encode())


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
