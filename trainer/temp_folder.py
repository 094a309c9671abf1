"""Short folders of ours in the system's temp folder: removed at the end, or swept by a later start.

A process that is ended by SIGKILL removes nothing. Each folder therefore says whose it is, and the
next start removes those whose owner is dead. What says nothing, or is another's, is never touched.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "lr-"  # short: Ray refuses socket paths over 107 bytes
OWNER = ".owner.json"


@contextmanager
def temp_folder() -> Iterator[str]:
    """A folder for the `with` block; those of dead owners go first."""
    path = make_folder()
    try:
        yield path
    finally:
        remove_folder(path)


def make_folder() -> str:
    """Make a folder that says whose it is; those of dead owners go first."""
    sweep(Path(tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    (path / OWNER).write_text(json.dumps(owner_of(os.getpid())), encoding="utf-8")
    return str(path)


def remove_folder(path: str) -> None:
    """Remove a folder, though a process that is ending may write a last line meanwhile."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
        time.sleep(0.1)


def sweep(folder: Path) -> None:
    """Remove the folders in `folder` that a process of ours made and did not live to remove."""
    for path in folder.glob(f"{PREFIX}*"):
        try:
            owner = json.loads((path / OWNER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # not ours, or not ours to read, or made at this moment
        if is_dead(owner):
            shutil.rmtree(path, ignore_errors=True)


def owner_of(pid: int) -> dict[str, object] | None:
    """A process so that no other one, at any time, is taken for it; None where that cannot be told.

    A process id alone is given out again, and means another process in another container.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return {
            "pid": pid,
            "started": int(stat[19]),  # in ticks since the machine did
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip(),
            "namespace": str(Path("/proc/self/ns/pid").readlink()),
        }
    except OSError:
        return None


def is_dead(owner: object) -> bool:
    """Whether the process that `owner_of` told of has ended; False where we cannot know."""
    here = owner_of(os.getpid())
    if here is None or not isinstance(owner, dict) or owner.keys() != here.keys():
        return False
    if (owner["boot"], owner["namespace"]) != (here["boot"], here["namespace"]):
        return False
    return owner_of(int(owner["pid"])) != owner
