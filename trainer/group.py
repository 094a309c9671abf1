"""The ranks of a run: who I am, what we all decide, what we all add up.

Decisions travel on a gloo side group in host memory, so that a GPU is never waited for to learn
whether somebody wants to stop. A group of one needs no process group at all.
"""

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # its default arguments keep the group that is there now
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What the ranks say before a step, added up over all of them.

    Attributes:
        stop: Ranks that were asked to stop.
        waiting: Ranks whose batch is not there yet.
        failed: Ranks that met an error and cannot go on.
        score: Ranks that want the step after this one followed by an evaluation.
        targets: Targets in the batches of all ranks.
    """

    stop: int = 0
    waiting: int = 0
    failed: int = 0
    score: int = 0
    targets: int = 0


class Group:
    """One rank's view of all ranks.

    Attributes:
        rank: Mine, from 0.
        world_size: W, how many there are.
        reduces: Whether gradients go through DDP: those of several ranks, or if that was asked for.
        device: Where my tensors live.
    """

    def __init__(
        self, *, device: torch.device, timeout_s: float = 300.0, reduce_alone: bool = False
    ) -> None:
        """Join the ranks of torch's default process group, if there is one.

        Args:
            device: Where this rank computes.
            timeout_s: Seconds after which a vote without an answer is an error.
            reduce_alone: A single rank takes its gradients through DDP too: to see that it works.
        """
        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.world_size = dist.get_world_size() if joined else 1
        self.reduces = self.world_size > 1 or reduce_alone
        self.device = device
        self._side: Any = (
            dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
            if self.world_size > 1
            else None
        )

    def vote(self, mine: Vote) -> Vote:
        """Add up what every rank says; all ranks get the same answer.

        Raises:
            RuntimeError: A rank died or did not answer in time.
        """
        if self._side is None:
            return mine
        names = [field.name for field in fields(Vote)]
        ballot = torch.tensor([int(getattr(mine, name)) for name in names])
        dist.all_reduce(ballot, group=self._side)
        return Vote(**dict(zip(names, ballot.tolist(), strict=True)))

    def first_error(self, mine: str | None) -> str | None:
        """The error of the lowest rank that has one, known to all; None if all are well."""
        return next((error for error in self.gather(mine) if error is not None), None)

    def gather(self, mine: str | None) -> list[str | None]:
        """What every rank says, in the order of ranks."""
        if self._side is None:
            return [mine]
        said: list[str | None] = [None] * self.world_size
        dist.all_gather_object(said, mine, group=self._side)
        return said

    def from_rank_0(self, value: str) -> str:
        """Rank 0's `value`, on every rank."""
        if self._side is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._side)
        return box[0]

    def sum_(self, numbers: Tensor) -> Tensor:
        """Add `numbers` up over all ranks, in place, on the device they are on."""
        if self.world_size > 1:
            dist.all_reduce(numbers)
        return numbers

    def sum_on_host(self, numbers: Tensor) -> Tensor:
        """Add host `numbers` up over all ranks, in place."""
        if self._side is not None:
            dist.all_reduce(numbers, group=self._side)
        return numbers
