"""Memory that a process gives back and takes anew at every step is kept instead.

glibc hands large blocks back to the system as soon as they are free, and the next step's first
write to each page of them is a page fault: up to a tenth of a training step in bf16 on a CPU.
"""

import ctypes
import os
import sys

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1  # the most an int holds: blocks of 2 GiB and more still come and go


def keep_heap() -> bool:
    """Keep freed memory for what is allocated next; whether the C library could be told so.

    What MALLOC_MMAP_THRESHOLD_ or MALLOC_TRIM_THRESHOLD_ in the environment say is left alone.
    """
    told = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys()
    if not sys.platform.startswith("linux") or told:
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False  # musl, which has no such switch
    return all(
        library.mallopt(ctypes.c_int(what), ctypes.c_int(_NEVER)) == 1
        for what in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)
    )
