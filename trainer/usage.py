"""What a worker takes of its machine: memory, and arithmetic beside what the device can do."""

import resource
from collections.abc import Callable
from pathlib import Path

import torch

from pipeline.heap import most_host_memory_bytes
from trainer.flops import peak_of, step_flops
from trainer.plan import TrainPlan

STATM = Path("/proc/self/statm")


def usage_meter(
    plan: TrainPlan, device: torch.device, *, world_size: int
) -> Callable[[float], dict[str, float]]:
    """A function from the seconds of a step to its metrics of use.

    They are those of the process that asks, rank 0's, and for the arithmetic those of all workers.
    """
    work = step_flops(plan.model, rows=plan.layout.rows, segment=plan.layout.segment)
    peak = plan.trainer.peak_tflops * 1e12
    if not peak and device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        peak = peak_of(name, precision=plan.trainer.precision)

    def measure(seconds: float) -> dict[str, float]:
        found = {
            "train/model_flops_per_second": work / seconds,
            "system/host_memory_bytes": float(host_memory_bytes()),
        }
        if peak:
            found["train/model_flop_use"] = work / seconds / (peak * world_size)
        if device.type == "cuda":
            found["system/device_memory_bytes"] = float(torch.cuda.memory_allocated(device))
            found["system/device_memory_peak_bytes"] = float(
                torch.cuda.max_memory_allocated(device)
            )
        return found

    return measure


def host_memory_bytes() -> int:
    """Memory of this process that lies in the machine's; the most so far where no more is told."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    return most_host_memory_bytes()
