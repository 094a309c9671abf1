"""The memory of a process: how much it held, and how it keeps what it would take anew.

glibc hands large blocks back to the system as soon as they are free, and the next write to each
page of such a block is a page fault.
"""

import ctypes
import os
import resource
import sys
from pathlib import Path

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_STATUS = Path("/proc/self/status")
_MOST = 32 << 20  # that glibc before 2.35 takes for a block


def keep_freed(*, block_bytes: int, spare_bytes: int) -> bool:
    """Keep freed memory for what is allocated next; whether the C library could be told so.

    What MALLOC_MMAP_THRESHOLD_ or MALLOC_TRIM_THRESHOLD_ in the environment say is left alone.

    Args:
        block_bytes: Larger blocks still come from the system, and go back to it.
        spare_bytes: So much is kept at most, beyond what is in use.
    """
    told = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys()
    if not sys.platform.startswith("linux") or told:
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False  # musl, which has no such switch
    return any(library.mallopt(_MMAP_THRESHOLD, most) == 1 for most in (block_bytes, _MOST)) and (
        library.mallopt(_TRIM_THRESHOLD, spare_bytes) == 1
    )


def most_host_memory_bytes() -> int:
    """The most memory of the machine's that this process has held since it began."""
    said = _STATUS.read_text(encoding="ascii", errors="replace") if _STATUS.exists() else ""
    if "VmHWM:" in said:  # not ru_maxrss, which a process inherits from the one that starts it
        return int(said.partition("VmHWM:")[2].split()[0]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # in bytes, or in KiB
