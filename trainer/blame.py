"""Which error ended the workers: the first cause and not what the others met because of it."""

import re

# How torch says that another rank has gone: gloo in plain RuntimeErrors, the rest by their class.
GONE = re.compile(
    r"gloo/|Connection (closed|reset) by peer|Application timeout caused pair closure"
    r"|Another rank failed|NCCL communicator was aborted|Broken pipe"
)
GONE_KINDS = ("DistBackendError", "DistNetworkError", "DistStoreError")
# How an allocator says that there is no memory left, and how Ray says that it ended a process so.
NO_MEMORY = re.compile(
    r"can't allocate memory|out of memory|Cannot allocate memory|low on memory"
    r"|memory usage threshold|not enough memory|std::bad_alloc",
    re.IGNORECASE,
)
NO_MEMORY_KINDS = ("MemoryError", "OutOfMemoryError")


def is_collateral(error: BaseException) -> bool:
    """Whether a rank met this because another one had gone."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    return bool(kinds & set(GONE_KINDS)) or (
        isinstance(error, RuntimeError) and GONE.search(str(error)) is not None
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator had no memory left."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    return bool(kinds & set(NO_MEMORY_KINDS)) or NO_MEMORY.search(str(error)) is not None


def tell(rank: int, error: BaseException) -> str:
    """What a rank died of, in a sentence for a person."""
    what = f"Rank {rank}: {type(error).__name__}: {first_line(error)}"
    if is_out_of_memory(error):
        return (
            f"Rank {rank} ran out of memory: take fewer rows, a shorter segment or memory, or a "
            f"larger trainer.accumulation. {what}"
        )
    return what


def tell_death(rank: int, text: str) -> str:
    """What is known of a rank that died and left no word.

    Args:
        rank: The rank.
        text: What Ray says of it.
    """
    if NO_MEMORY.search(text) and "OOM killer" not in text:  # which Ray names as a mere guess
        line = next(line for line in text.splitlines() if NO_MEMORY.search(line))
        return (
            f"Rank {rank} was ended by Ray because its node ran out of memory: take fewer rows, a "
            f"shorter segment or memory, or fewer workers a node. Ray says: {line.strip()[:300]}"
        )
    return (
        f"Rank {rank} left no word: its process was killed from outside, or by the system because "
        "memory ran out"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class where it has none."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
