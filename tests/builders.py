"""What tests of builds look at: the bytes of a store, and the processes that build it."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path


def content(store: Path) -> dict[str, str]:
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def wait_for(holds: Callable[[], bool], *, timeout_s: float = 60) -> bool:
    ends = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < ends:
        time.sleep(0.002)
    return holds()


def builders() -> dict[int, bool]:
    """Processes of builder actors below this process or its Ray, and whether each is building."""
    parents: dict[int, int] = {}
    titles: dict[int, bytes] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            title = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(stat.parent.name)] = parent
        if title.startswith(b"ray::BuilderActor"):
            titles[int(stat.parent.name)] = title

    def is_ours(pid: int) -> bool:  # numbers begin anew, so a child may have a smaller one
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid != 0

    return {
        pid: titles[pid].startswith(b"ray::BuilderActor.build")
        for pid in sorted(titles)
        if is_ours(pid)
    }
