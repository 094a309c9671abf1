"""Ranks in threads of one process: what they say to each other, and that they say it alike.

A real collective that only some ranks enter hangs, or answers another question; here it is an
error at once.
"""

import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainer.group import Group, Vote
from trainer.start import DoomedError

T = TypeVar("T")
TIMEOUT_S = 60.0


class Table:
    """Where the ranks meet."""

    def __init__(self, world_size: int) -> None:
        self.said: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size)


class ThreadGroup(Group):
    """One rank's view of the others at `table`."""

    def __init__(self, table: Table, rank: int) -> None:
        super().__init__(device=torch.device("cpu"))
        self.rank, self.world_size = rank, len(table.said)
        self._table = table

    def _all(self, kind: str, value: Any) -> list[Any]:
        table = self._table
        table.said[self.rank] = (kind, value)
        table.barrier.wait(TIMEOUT_S)
        said = list(table.said)
        table.barrier.wait(TIMEOUT_S)
        assert len({name for name, _ in said}) == 1, f"the ranks say {said}"
        return [told for _, told in said]

    def vote(self, mine: Vote) -> Vote:
        said = self._all("vote", mine)
        return Vote(
            **{one.name: sum(getattr(v, one.name) for v in said) for one in fields(Vote)},
        )

    def gather(self, mine: str | None) -> list[str | None]:
        return self._all("gather", mine)

    def from_rank_0(self, value: str) -> str:
        return self._all("from rank 0", value)[0]

    def sum_(self, numbers: Tensor) -> Tensor:
        return numbers.copy_(torch.stack(self._all("sum", numbers.clone())).sum(0))

    def sum_on_host(self, numbers: Tensor) -> Tensor:
        return numbers.copy_(torch.stack(self._all("sum on host", numbers.clone())).sum(0))


def of_ranks(world_size: int, act: Callable[[Group], T]) -> list[T | Exception]:
    """What `act` gives, or raises, on each rank."""
    table = Table(world_size)
    found: list[Any] = [None] * world_size

    def work(rank: int) -> None:
        try:
            found[rank] = act(ThreadGroup(table, rank))
        except Exception as error:  # noqa: BLE001 - told to the test
            found[rank] = error
            if not isinstance(error, DoomedError):  # the others do not raise it too
                table.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
