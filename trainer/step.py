"""One step: forward and backward in pieces of rows, then clip, then update or skip."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.loss import loss_sum
from model.memory import Memory, join
from model.noise import Noise
from model.transformer_xl import TransformerXL
from trainer.spikes import judge


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """A rank's batch as tensors on its device.

    Attributes:
        tokens: (R, L) int64.
        targets: (R, L) int64, -100 where there is none.
        offset: (R, L) int64, tokens of its document before each token.
        numbers: (R,) int64, the global numbers of the rows.
    """

    tokens: Tensor
    targets: Tensor
    offset: Tensor
    numbers: Tensor

    def pieces(self, count: int) -> Iterator[tuple[int, int, "Rows"]]:
        """Cut into `count` equal pieces of rows: first row, row past the last, the piece."""
        each = len(self.tokens) // count
        for low in range(0, each * count, each):
            cut = slice(low, low + each)
            yield (
                low,
                low + each,
                Rows(
                    tokens=self.tokens[cut],
                    targets=self.targets[cut],
                    offset=self.offset[cut],
                    numbers=self.numbers[cut],
                ),
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """What a step did, still on the device: reading it waits for the device.

    Attributes:
        loss: () float64, summed negative log likelihood of this rank's targets.
        norm: () float32, gradient norm over all ranks before clipping.
        applied: () bool, False where the update was skipped.
        usable: () float32, mean share of the memory this rank's rows could read.
        seen: (2,) float64, mean gradient norm and how many are in it, for the spike guard.
    """

    loss: Tensor
    norm: Tensor
    applied: Tensor
    usable: Tensor
    seen: Tensor


class Objective(nn.Module):
    """The model and its loss in one forward, so that DDP sees every weight used."""

    def __init__(self, model: TransformerXL, *, z_loss: float = 0.0) -> None:
        super().__init__()
        self.model, self.z_loss = model, z_loss

    def forward(
        self, rows: Rows, memory: Memory, noise: Noise | None
    ) -> tuple[Tensor, Tensor, Memory]:
        """Summed loss of `rows`, () float64, how much of it is z-loss, and the memory after."""
        hidden, after = self.model(rows.tokens, rows.offset, memory, noise)
        losses, penalties = self.model.penalized(hidden, rows.targets, z_loss=self.z_loss)
        total, _ = loss_sum(losses, rows.targets)
        return total, penalties.detach().sum(dtype=torch.float64), after


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What is the same at every step.

    Attributes:
        accumulation: Pieces of rows a step is computed in.
        clip: Largest gradient norm; 0 never clips.
        precision: "fp32" or "bf16".
        seed: Of the dropout noise.
        world_size: W; DDP divides the summed gradient by it.
        spike_factor: Of trainer/spikes.py; 0 guards against nothing.
    """

    accumulation: int
    clip: float
    precision: str
    seed: int
    world_size: int
    spike_factor: float = 0.0


def backward(
    objective: nn.Module, rows: Rows, memory: Memory, *, plan: StepPlan, step: int, targets: int
) -> tuple[Tensor, Memory]:
    """Add the gradient of the mean loss over all `targets` of all ranks to the weights.

    Each piece of rows has its own memory and its own noise, both by row, so the number of pieces
    changes nothing but the order of float sums.

    Returns:
        This rank's summed loss without the z-loss, () float64, and the memory after the segment.
    """
    total = torch.zeros((), dtype=torch.float64, device=rows.tokens.device)
    after: list[Memory] = []
    for low, high, piece in rows.pieces(plan.accumulation):
        noise = Noise(seed=plan.seed, step=step, rows=piece.numbers)
        last = high == len(rows.tokens)
        with _reduce_when(objective, last=last):
            with _precision(plan, rows.tokens.device):
                loss, penalty, remembered = objective(piece, memory.rows(low, high), noise)
            (loss * (plan.world_size / targets)).backward()
        total += loss.detach() - penalty
        after.append(remembered)
    return total, after[0] if len(after) == 1 else join(after)


def take_step(  # noqa: PLR0913 - a step needs all of these, each by name
    objective: nn.Module,
    optimizer: torch.optim.AdamW,
    rows: Rows,
    memory: Memory,
    *,
    plan: StepPlan,
    step: int,
    targets: int,
    rate: float,
    seen: Tensor,
) -> tuple[StepResult, Memory]:
    """Take one step; a bad update is skipped on the device, and rows and memory go on.

    An update is bad if its gradient is not finite, or a spike (trainer/spikes.py).

    Args:
        objective: An Objective, as it is or wrapped in DDP.
        optimizer: Its AdamW, fused.
        rows: This rank's batch.
        memory: What its rows remember.
        plan: What is the same at every step.
        step: Which step this is, from 0; part of the noise.
        targets: Real targets in the batches of all ranks.
        rate: Learning rate of this step.
        seen: (2,) float64, mean gradient norm of the steps before and how many are in it.
    """
    optimizer.zero_grad(set_to_none=True)
    loss, after = backward(objective, rows, memory, plan=plan, step=step, targets=targets)
    norm = nn.utils.clip_grad_norm_(
        objective.parameters(), plan.clip if plan.clip > 0 else float("inf")
    )
    applied, seen = judge(norm, seen, factor=plan.spike_factor)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.found_inf = (~applied).float()  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.step()
    length = max(1, memory.states.shape[2])
    usable = memory.usable.float().mean() / length
    result = StepResult(
        loss=loss, norm=norm.detach(), applied=applied, usable=usable, seen=seen.detach()
    )
    return result, after


def _reduce_when(objective: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    if isinstance(objective, DistributedDataParallel) and not last:
        return objective.no_sync()
    return nullcontext()


def _precision(plan: StepPlan, device: torch.device) -> AbstractContextManager[object]:
    if plan.precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
