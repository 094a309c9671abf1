"""What the doctor looks at on the machine itself: Python, packages, GPUs, shared memory."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from jobs.doctor import Finding
from jobs.entry import DISTRIBUTION

LEAST_PYTHON = ">=3.11"  # requires-python; tests/unit/test_doctor.py holds them equal
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - Linux's own name for it
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
# What a run with a few workers passes through it; Ray's own default is 0.3 of the memory.
LEAST_SHARED = 1 << 30
RAYS_SHARE = 0.3
RAYS_MOST = 10 * 10**9  # above this Ray asks for no more than shared memory has


def python(found: str = platform.python_version()) -> Finding:
    """The interpreter."""
    if found in SpecifierSet(LEAST_PYTHON):
        return Finding(name="python", state="ok", found=found)
    return Finding(
        name="python",
        state="wrong",
        found=f"{found}, and {LEAST_PYTHON} is wanted",
        do="Install a newer one, and name it: make install PYTHON=python3.12.",
    )


def constraints_of_clone() -> Path | None:
    """constraints.txt beside our code; a wheel has none."""
    path = Path(__file__).resolve().parents[1] / "constraints.txt"
    return path if path.is_file() else None


def packages(constraints: Path | None) -> Finding:
    """Installed versions against those we require, and the tested ones where they are known."""
    wanted = [Requirement(line) for line in requires(DISTRIBUTION) or []]
    wanted = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    have = {one.name: _version(one.name) for one in wanted}
    bad = [
        f"{one.name} {have[one.name] or 'is missing'} ({one.specifier})"
        for one in wanted
        if not have[one.name] or not one.specifier.contains(have[one.name] or "", prereleases=True)
    ]
    if bad:
        return Finding(
            name="packages",
            state="wrong",
            found=", ".join(bad),
            do="Install what is wanted: make install, or pip install -c constraints.txt longrow.",
        )
    if constraints is None:
        return Finding(name="packages", state="ok", found=f"{len(have)} as required")
    pins = _pins(constraints)
    others = [
        f"{name} {mine} (tested: {pins[name]})"
        for name, mine in have.items()
        if mine and name in pins and mine.partition("+")[0] != pins[name]
    ]
    if others:
        return Finding(
            name="packages",
            state="note",
            found=f"not as tested: {', '.join(others)}",
            do="They may well work. For the tested ones: make install.",
        )
    return Finding(name="packages", state="ok", found=f"{len(have)} as tested")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _pins(path: Path) -> dict[str, str]:
    text = path.read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE))


def gpus() -> Finding:
    """What torch can compute on."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        names = sorted({torch.cuda.get_device_name(i) for i in range(count)})
        return Finding(name="gpus", state="ok", found=f"{count}: {', '.join(names)}")
    return no_gpu(cores or 1, driver=NVIDIA_DRIVER.exists(), build=torch.__version__)


def no_gpu(cores: int, *, driver: bool, build: str) -> Finding:
    """What to say where torch sees no GPU.

    Args:
        cores: Of the CPU.
        driver: Whether NVIDIA's driver is loaded.
        build: Torch's version, which says what it was built for.
    """
    if driver:
        return Finding(
            name="gpus",
            state="wrong",
            found=f"NVIDIA's driver is here, and torch {build} sees no GPU",
            do="Install torch's CUDA build for this driver, and see that nvidia-smi lists the GPUs "
            "(in a container: --gpus=all).",
        )
    return Finding(name="gpus", state="ok", found=f"none; {cores} CPU cores")


def shared_memory(folder: Path = SHARED_MEMORY, memory: int | None = None) -> Finding:
    """Shared memory against the object store that Ray would lay into it.

    Args:
        folder: Where it is mounted.
        memory: Bytes of the machine's memory, or of the container's; looked up if None.
    """
    name = "shared memory"
    if not folder.is_dir():  # not Linux: Ray knows its own ways
        return Finding(name=name, state="ok", found=f"no {folder} on {platform.system()}")
    stats = os.statvfs(folder)
    free = stats.f_frsize * stats.f_bavail
    wants = min(int(RAYS_SHARE * (memory or memory_bytes())), RAYS_MOST)
    do = (
        "Give the container more (--shm-size=2g, shm_size: 2gb, an emptyDir of medium Memory), or "
        "start Ray with --object-store-memory below it. Else Ray keeps its objects on the disk."
    )
    if free >= wants:
        return Finding(name=name, state="ok", found=f"{free / 1e9:.1f} GB free in {folder}")
    found = f"{free / 1e9:.2f} GB free in {folder}, Ray's object store takes {wants / 1e9:.1f} GB"
    state = "wrong" if free < LEAST_SHARED else "note"
    return Finding(name=name, state=state, found=found, do=do)


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or its container's if that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        int(text)
        for file in ("memory.max", "memory/memory.limit_in_bytes")
        if (path := Path("/sys/fs/cgroup") / file).is_file()
        and (text := path.read_text(encoding="ascii").strip()).isdecimal()
    ]
    return min([whole, *limits])
