"""Whether what is to be read fits into memory: asked before it begins, not told by an allocator."""

from pathlib import Path

import torch

from model.config import ModelConfig
from trainer.errors import ConfigError
from trainer.evaluation import Wanted

GIB = 1 << 30
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def check_room(
    config: ModelConfig, wanted: Wanted, *, inputs: int, device: torch.device, sharing: int = 1
) -> None:
    """Refuse rows, a segment or a memory that cannot be held.

    Args:
        config: Of the model.
        wanted: How is read; the rows of this process only.
        inputs: That a row reads at most: a longer memory is never full.
        device: Where is computed.
        sharing: Processes that do the same on the same device at the same time.

    Raises:
        ConfigError: It does not fit.
    """
    need = sharing * reading_bytes(config, wanted, inputs=inputs)
    free = free_bytes(device)
    if free is not None and need > free:
        share = f" in each of {sharing} workers" if sharing > 1 else ""
        raise ConfigError(
            f"{wanted.rows:,} rows, segment {wanted.segment:,} and memory {wanted.memory:,}{share} "
            f"take {_size(need)} at least, and {_size(free)} of {device.type.upper()} memory are "
            "free. Lower the largest of them."
        )


def reading_bytes(config: ModelConfig, wanted: Wanted, *, inputs: int) -> int:
    """A lower bound of what is held at once while rows are read, beside the weights, in bytes.

    It counts kept keys and values with their room to grow, projected distances, and of one layer
    the attention scores and the inner activations, in float32.
    """
    B, L, M = wanted.rows, wanted.segment, wanted.memory
    HE = config.heads * config.head_width
    keys = L + min(M, inputs)
    kept = 2 * config.layers * B * (M + max(M, L)) * HE if M else 0
    distances = config.layers * HE * max(M + 1, keys) if M else 0
    scores = 2 * B * config.heads * L * keys
    states = B * L * (config.width + config.inner_width + 3 * HE)
    batch = 8 * B * (1 + L)  # tokens, offsets and targets, int64, and what is known of a row
    return 4 * (kept + distances + scores + states + batch)


def free_bytes(device: torch.device) -> int | None:
    """Memory that may still be taken on `device`; None where nobody says."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    found = [free for free in (_free_of_machine(), _free_of_container()) if free is not None]
    return min(found, default=None)


def _free_of_machine() -> int | None:
    if not _MEMINFO.is_file():
        return None
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
    kib = lines.get("MemAvailable", "").split()
    return int(kib[0]) << 10 if kib else None


def _free_of_container() -> int | None:
    """What the container's limit (cgroup 2) leaves."""
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if not (limit.is_file() and used.is_file()):
        return None
    most = limit.read_text().strip()
    return max(0, int(most) - int(used.read_text())) if most.isdecimal() else None


def _size(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count < GIB << 40 else f"{count // (GIB << 10):,} TiB"
