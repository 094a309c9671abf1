"""Checkpoints: a folder that is whole or not there at all.

    checkpoints/step_00000100-a0001/
        model.safetensors         weights by name
        average.safetensors       their moving average, with trainer.average alone
        optimizer.safetensors     AdamW's moments and step counts, by weight
        memory-0.safetensors ...  one a rank: states and usable of its rows, by global row
        state.json                step, rows, counters, what the run is, versions
        rank-0.json ...           what each rank wrote: sizes and sha256
        manifest.json             the same of all files; written last

Every rank writes its files into `.part`; rank 0 waits for all rank-*.json by looking (a saving
thread must not enter a collective), writes the manifest and renames the folder (snapshot.py). Only
tensors and JSON: nothing in it can execute. There is no generator state to save: every random
number of a run is a function of (seed, step, global row).
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from model.memory import Memory
from pipeline.errors import DataError
from trainer.run_folder import Attempt, RunFolder

NAME = re.compile(r"step_(\d+)-a(\d+)")
MANIFEST_VERSION = 1
WEIGHTS, AVERAGE = "model.safetensors", "average.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE_VERSION = 1
STATE_KEYS = {
    *("step", "attempt", "world_size", "threads", "rows", "next_batch", "counters", "identity"),
    *("plan", "mlflow_run_id", "versions"),
}


class CheckpointError(DataError):
    """A checkpoint cannot be read or written; the message names the file."""


def checkpoint_name(step: int, attempt: int) -> str:
    """Name of the folder of `step`, written by `attempt`."""
    return f"step_{step:08d}-a{attempt:04d}"


def attempt_of(path: Path) -> int:
    """The attempt that a checkpoint folder's name says."""
    found = NAME.fullmatch(path.name)
    return int(found[2]) if found else 0


def step_of(path: Path) -> int:
    """The step that a checkpoint folder's name says.

    Raises:
        CheckpointError: It is no such name.
    """
    found = NAME.fullmatch(path.name)
    if not found:
        raise CheckpointError(
            f"{path} is not named like a checkpoint (step_00000100-a0001). Name a run's folder, or "
            "a folder under its checkpoints/."
        )
    return int(found[1])


def faults(
    path: Path, *, tensors: bool = True, sizes: Mapping[str, int] | None = None
) -> list[str]:
    """What is wrong with the checkpoint in `path`: a sentence a fault, none when it is whole.

    Args:
        path: A checkpoint's folder.
        tensors: Read every byte of the tensors too, and not only see that their sizes hold.
        sizes: Bytes of the files that lie elsewhere, where tensors are not to be read.
    """
    sizes = sizes or {}
    manifest, wrong = _manifest_of(path)
    if wrong:
        return [wrong]
    files, world_size = manifest["files"], manifest.get("world_size")
    if not isinstance(world_size, int) or world_size not in range(1, len(files) + 1):
        return [f"{path}/manifest.json is damaged: {world_size} ranks wrote {len(files)} files"]
    wanted = _names(world_size)
    if AVERAGE in files or (path / AVERAGE).exists():  # of some runs alone
        wanted.add(AVERAGE)
    if set(files) != wanted:
        odd = ", ".join(sorted(set(files) ^ wanted))
        return [f"{path}/manifest.json does not list the files of a checkpoint: {odd}"]
    found = [_fault(path, name, told, tensors=tensors, sizes=sizes) for name, told in files.items()]
    return [fault for fault in found if fault]


def _manifest_of(path: Path) -> tuple[dict[str, Any], str]:
    """The manifest of a checkpoint, with a table under "files"; or what is wrong with it."""
    file = path / "manifest.json"
    try:
        manifest = json.loads(file.read_bytes())
    except OSError as error:
        return {}, f"{file} cannot be read: {error.strerror or error}"
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or brackets without end
        return {}, f"{file} is damaged: {error}"
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return {}, f"{file} is damaged: it lists no files"
    if manifest.get("version") != MANIFEST_VERSION:
        return manifest, f"{file} has version {manifest.get('version')}, not {MANIFEST_VERSION}"
    return manifest, ""


def _fault(path: Path, name: str, told: Any, *, tensors: bool, sizes: Mapping[str, int]) -> str:
    """What is wrong with file `name` of a checkpoint, of which its manifest has `told`."""
    file = path / name
    size, sha256 = (told.get("size"), told.get("sha256")) if isinstance(told, dict) else (0, 0)
    if not isinstance(size, int) or not isinstance(sha256, str):
        return f"{path}/manifest.json says neither size nor sha256 of {name}"
    try:
        if (found := _size(file, sizes)) != size:
            return f"{file} has {found:,} bytes, its manifest says {size:,}"
        if (tensors or file.suffix == ".json") and _sha256(file) != sha256:
            return f"{file} does not have the sha256 of its manifest"
    except (FileNotFoundError, KeyError):  # it is neither here nor there, or not any more
        return f"{file} is missing"
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    return ""


def faults_of(run: RunFolder, path: Path, *, tensors: bool = True) -> list[str]:
    """The same of a checkpoint of `run`, wherever that lies."""
    if tensors:
        run.fetch(path)
        found = faults(path)
    else:
        found = faults(path, tensors=False, sizes=run.sizes(path))
    return [run.named(fault) for fault in found]


def faults_now(run: RunFolder, path: Path) -> list[str] | None:
    """The faults of a checkpoint of a run that may be running; None if it has removed it since."""
    was_one = (path / "manifest.json").is_file()
    wrong = faults_of(run, path)
    if wrong and was_one and not run.exists(f"{path.parent.name}/{path.name}/manifest.json"):
        return None
    return wrong


def newest_of(
    run: RunFolder, attempts: Sequence[Attempt], *, tensors: bool = True
) -> tuple[Path | None, list[str]]:
    """As `newest_whole`, of `run`; with `tensors` the files of what is found are here.

    Raises:
        CheckpointError: There are checkpoints, and none of them is whole.
    """

    def look(path: Path) -> list[str]:
        wrong = faults_of(run, path, tensors=tensors)
        if wrong:
            run.let_go(path)
        return wrong

    try:
        newest, passed = newest_whole(run.checkpoints, attempts, look=look)
    except CheckpointError as error:
        raise CheckpointError(run.named(str(error))) from error
    return newest, [*passed, *run.unfinished()]


def _size(file: Path, elsewhere: Mapping[str, int]) -> int:
    return file.stat().st_size if file.is_file() else elsewhere[file.name]


def checkpoints(folder: Path) -> list[Path]:
    """The committed checkpoints under `folder`, oldest first; of one step, by attempt."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_dir())


def living(folder: Path, attempts: Sequence[Attempt]) -> list[Path]:
    """The checkpoints that the run still stands on, oldest first.

    An attempt that began at step S left what earlier ones had written past S: because it was
    damaged, or because an overtaken process wrote it later. Such a branch is dead for good, for
    its steps were taken again.
    """

    def dead(path: Path) -> bool:
        return any(
            attempt.number > attempt_of(path) and attempt.start_step < step_of(path)
            for attempt in attempts
        )

    return [path for path in checkpoints(folder) if not dead(path)]


def newest_whole(
    folder: Path, attempts: Sequence[Attempt], *, look: Callable[[Path], list[str]] = faults
) -> tuple[Path | None, list[str]]:
    """The newest living checkpoint whose manifest holds, and the faults of newer ones passed over.

    Args:
        folder: A run's checkpoints.
        attempts: All of the run, which tell the living from the dead.
        look: Says what is wrong with one.

    Raises:
        CheckpointError: There are checkpoints, and none of them is whole; or one is not damaged and
            can all the same not be gone on from.
    """
    passed: list[str] = []
    for path in reversed(living(folder, attempts)):
        _refuse_to_pass_over(path)
        wrong = look(path)
        if not wrong:
            return path, passed
        passed += wrong
    if passed:
        raise CheckpointError(
            f"No checkpoint in {folder} is whole: {'; '.join(passed)}. Put one back from a copy, "
            "or move that folder away to train from step 0."
        )
    return None, passed


def _refuse_to_pass_over(path: Path) -> None:
    """Refuse a checkpoint that others can read: to go on from an older one would lose its steps.

    Raises:
        CheckpointError: It was written by a newer version, or by somebody whose files we may not
            read.
    """
    try:
        for file in sorted(path.iterdir()):
            if file.is_file():
                file.open("rb").close()
    except PermissionError as error:
        raise CheckpointError(
            f"{error.filename or path} may not be read by this user. Give the right to it (chown, "
            "chmod), or move that folder away to go on from an older one."
        ) from error
    except OSError:
        return  # the one who looks says more
    version = _manifest_of(path)[0].get("version")
    if isinstance(version, int) and version > MANIFEST_VERSION:
        raise CheckpointError(
            f"{path} was written by a newer longrow: its manifest has version {version}, this one "
            f"reads {MANIFEST_VERSION}. Go on with the version that wrote it, or move that folder "
            "away to go on from an older one."
        )


def drop_unfinished(folder: Path, *, attempt: int) -> None:
    """Remove what attempts before `attempt` were writing when they ended."""
    for path in folder.glob("step_*.part"):
        found = NAME.fullmatch(path.stem)
        if found and int(found[2]) < attempt and path.is_dir():
            shutil.rmtree(path)


def read_state(path: Path) -> dict[str, Any]:
    """The state.json of a checkpoint.

    Raises:
        CheckpointError: It cannot be read, or another version of this program wrote it.
    """
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        version = state["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}/state.json cannot be read: {error!r}.") from error
    missing = sorted(STATE_KEYS - state.keys()) if version == STATE_VERSION else []
    if version != STATE_VERSION or missing:
        lacks = f" and lacks {', '.join(missing)}" if missing else ""
        raise CheckpointError(
            f"{path}/state.json has version {version}{lacks}; version {STATE_VERSION} was wanted. "
            "Use the version of longrow that wrote it."
        )
    return state


def load_weights(path: Path, model: nn.Module, *, file: str = WEIGHTS) -> None:
    """Put a checkpoint's weights, or those of its average, into `model`.

    Raises:
        CheckpointError: The weights do not fit the model.
    """
    saved = _read(path / file)
    for name, parameter in model.named_parameters():
        tensor = saved.pop(name, None)
        if tensor is None or tensor.shape != parameter.shape:
            told = "no such weight" if tensor is None else f"shape {list(tensor.shape)}"
            raise CheckpointError(
                f"{path / file} has {told} for {name!r}, the model wants shape "
                f"{list(parameter.shape)}. The checkpoint is of another model."
            )
        with torch.no_grad():
            parameter.copy_(tensor)
    if saved:
        raise CheckpointError(
            f"{path / file} has weights the model lacks: {', '.join(sorted(saved))}. "
            "The checkpoint is of another model."
        )


def load_average(path: Path, model: nn.Module) -> list[Tensor]:
    """The moving average in a checkpoint, in the order of the weights.

    Raises:
        CheckpointError: It is not there, or cannot be read.
    """
    saved = _read(path / AVERAGE)
    return [saved[name].to(weight.device) for name, weight in model.named_parameters()]


def load_optimizer(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a checkpoint's moments and step counts into `optimizer`."""
    saved = _read(path / OPTIMIZER)
    for name, parameter in model.named_parameters():
        moments = {
            key.split("/", 1)[0]: tensor
            for key, tensor in saved.items()
            if key.split("/", 1)[1] == name
        }
        # Fused AdamW keeps its step counts beside the weights.
        optimizer.state[parameter] = {
            key: tensor.to(parameter.device) for key, tensor in moments.items()
        }


def load_memory(path: Path, rows: tuple[int, int], device: torch.device) -> Memory:
    """The memory of global rows `rows`, whatever ranks wrote it.

    Raises:
        CheckpointError: Some of these rows are in no file.
    """
    states: list[Tensor] = []
    usable: list[Tensor] = []
    at = rows[0]
    for (low, high), file in sorted(_memory_files(path)):
        if low <= at < min(high, rows[1]):
            kept = _read(file)
            cut = slice(at - low, min(high, rows[1]) - low)
            states.append(kept["states"][:, cut])
            usable.append(kept["usable"][cut])
            at = min(high, rows[1])
    if at != rows[1]:
        raise CheckpointError(
            f"{path} holds no memory of row {at}; rows {rows[0]} to {rows[1] - 1} were wanted."
        )
    return Memory(states=torch.cat(states, dim=1).to(device), usable=torch.cat(usable).to(device))


def _names(world_size: int) -> set[str]:
    """The files of a checkpoint by so many ranks; bare names, so that none leads elsewhere."""
    of_ranks = {
        name for k in range(world_size) for name in (f"rank-{k}.json", f"memory-{k}.safetensors")
    }
    return {WEIGHTS, OPTIMIZER, "state.json"} | of_ranks


def _memory_files(path: Path) -> Iterator[tuple[tuple[int, int], Path]]:
    for file in path.glob("memory-*.safetensors"):
        try:
            with safe_open(file, framework="pt") as opened:
                low, high = map(int, opened.metadata()["rows"].split(":"))
        except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
            raise _unreadable(file, error) from error
        yield (low, high), file


def _unreadable(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{file} cannot be read ({error}). The checkpoint is damaged: take an older one."
    )


def _read(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _unreadable(file, error) from error


def save_tensors(tensors: Mapping[str, Tensor], file: Path, *, rows: tuple[int, int]) -> None:
    """Write tensors to `file`, and see that they are on the disk.

    Args:
        tensors: On the host, by name.
        file: Where to.
        rows: First and past-the-last global row that they are of.

    Raises:
        OSError: The disk refused.
    """
    file.touch()
    mode = file.stat().st_mode  # as the umask has it; safetensors would let nobody else read
    try:
        save_file(dict(tensors), file, metadata={"rows": f"{rows[0]}:{rows[1]}"})
    except SafetensorError as error:  # how it says that the disk is full
        raise _refused(file, str(error)) from error
    file.chmod(mode)
    sync(file)


def _refused(file: Path, told: str) -> OSError:
    """What the disk said, which safetensors tells in words alone."""
    if found := re.search(r"\(os error (\d+)\)", told):
        return OSError(int(found[1]), os.strerror(int(found[1])), str(file))
    return OSError(f"{file} cannot be written: {told}")


def describe_file(file: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"size": file.stat().st_size, "sha256": _sha256(file)}


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sync(path: Path) -> None:
    """See that a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
