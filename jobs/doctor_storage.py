"""What the doctor tries where runs and stores will be written: a real round, space, the clock."""

import errno
import os
import shutil
import tempfile
import time
import uuid
from pathlib import Path

from jobs.doctor import Finding
from pipeline.errors import DataError
from pipeline.files import (
    filesystem,
    join,
    list_folder,
    local_path,
    read_bytes,
    remove,
    write_whole,
)

CLOCK_S = 5.0  # a clock that is further off makes heartbeats and pictures lie
ROUNDS = 2  # the second write must replace the first
CHECKPOINTS_DO = (
    "Make room or name another place. A checkpoint takes three times the weights, each one that "
    "is kept; --free-gb says what your run needs."
)
SCRATCH_DO = "Make room there, or set TMPDIR to a folder that has it: Ray spills and logs there."


def storage(url: str, *, need: int) -> list[Finding]:
    """Write, replace, list, read and remove a file in a folder of our own below `url`.

    Args:
        url: Local folder, made if missing (and then removed again), or URL.
        need: Free bytes that a local one must have.
    """
    name = "storage"
    try:
        folder = local_path(url)
        if folder is None:
            return [_remote(url)]
        place = _nearest(folder)
        clock = _round(join(str(place), f".longrow-doctor-{uuid.uuid4().hex[:12]}"))
    except Exception as error:  # noqa: BLE001 - fsspec's file systems raise what they like
        return [_refused(url, error)]
    found = f"{url}: written, replaced, listed, read, removed"
    return [
        Finding(name=name, state="ok", found=found),
        _space("space", place, need, do=CHECKPOINTS_DO),
        clock_finding("clock", url, clock),
    ]


def scratch(*, need: int) -> Finding:
    """Space in the system's temp folder, where Ray spills and logs."""
    return _space("temp space", Path(tempfile.gettempdir()), need, do=SCRATCH_DO)


def clock_finding(name: str, whose: str, ahead_s: float) -> Finding:
    """What to say of a clock that is `ahead_s` seconds before ours."""
    if abs(ahead_s) <= CLOCK_S:
        return Finding(name=name, state="ok", found=f"{whose} is within {CLOCK_S:.0f} s of ours")
    return Finding(
        name=name,
        state="wrong",
        found=f"{whose} is {abs(ahead_s):,.0f} s {'ahead of' if ahead_s > 0 else 'behind'} ours",
        do="Set both clocks by NTP (timedatectl set-ntp true): heartbeats of runs compare them.",
    )


def _remote(url: str) -> Finding:
    system, path = filesystem(url)
    bucket = path.partition("/")[0]
    if bucket and not system.exists(bucket):  # else writing there would make one
        raise DataError(f"there is no {bucket}, or it is not shown to who we are")
    _round(join(url, f".longrow-doctor-{uuid.uuid4().hex[:12]}"))
    return Finding(
        name="storage", state="ok", found=f"{url}: written, replaced, listed, read, removed"
    )


def _round(folder: str) -> float:
    """Do in `folder` what runs do; it is gone afterwards.

    Returns:
        Seconds that a local file system's clock is ahead of ours; 0 for others.
    """
    file = join(folder, "probe")
    ahead = 0.0
    try:
        for number in range(ROUNDS):
            data = f"longrow {number}".encode() * 100
            before = time.time()
            write_whole(file, data)
            listed = list_folder(folder)
            if listed != {"probe": len(data)}:
                raise DataError(f"{folder} lists {listed} after probe was written there.")
            if read_bytes(file) != data:
                raise DataError(f"{file} holds something else than was written.")
            path = local_path(file)
            if path is not None:
                after, stamp = time.time(), path.stat().st_mtime
                ahead = stamp - after if stamp > after else min(0.0, stamp - before)
        remove(file)
        if "probe" in list_folder(folder):
            raise DataError(f"{file} is still listed after it was removed.")
    finally:
        _sweep(folder)
    return ahead


def _sweep(folder: str) -> None:
    path = local_path(folder)
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)
        return
    system, name = filesystem(folder)
    if system.exists(name):
        system.rm(name, recursive=True)


def _nearest(folder: Path) -> Path:
    """`folder`, or the nearest one above it that is there: what is missing is made by the run."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(20, os.strerror(20), str(place))
    return place


def _space(name: str, place: Path, need: int, *, do: str) -> Finding:
    free = shutil.disk_usage(place).free
    found = f"{free / 1e9:,.1f} GB free in {place}"
    if free >= need:
        return Finding(name=name, state="ok", found=found)
    return Finding(name=name, state="wrong", found=f"{found}, {need / 1e9:,.1f} GB wanted", do=do)


def _refused(url: str, error: Exception) -> Finding:
    if isinstance(error, OSError) and error.strerror:
        found = f"{url}: {error.strerror}"
    elif isinstance(error, DataError):  # a sentence of ours
        found = str(error) if url in str(error) else f"{url}: {error}"
    else:
        found = (
            f"{url}: {type(error).__name__}: {(str(error).splitlines() or ['no word'])[0][:200]}"
        )
    return Finding(name="storage", state="wrong", found=found, do=_way_out(url, error))


def _way_out(url: str, error: Exception) -> str:
    if local_path(url) is None:
        return (
            "See that the address is right, credentials and endpoint are in the environment "
            "(AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL), and they may write, list and delete there."
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room there, or name another place."
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return "Have it mounted for writing, or name another place."
    return "Name a folder that this user may write, list and delete in."
