"""Held-out documents scored by one of several workers: its rows, its blocks, and nothing else.

Worker k of N takes the rows [k * B // N, (k + 1) * B // N) of an evaluation, and of the blocks of
a measured context the same share. What the workers find is added up, or put one behind the other,
in their order. A scorer on its own is worker 0 of 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from model.transformer_xl import TransformerXL
from pipeline.store import Store
from trainer.context import Block, Measure, losses_by_context
from trainer.evaluation import Wanted, sum_rows
from trainer.load import is_weights_folder, load_folder, load_model
from trainer.room import check_room
from trainer.sums import Sums

Tell = Callable[[int], None]
ALONE = (0, 1)


def quiet(_done: int) -> None:
    """Tell nobody."""


class WorkerDiedError(RuntimeError):
    """The process of a worker is gone; nothing is known to be wrong with what it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerPlan:
    """What a worker in another process must know to be the scorer that this one would be.

    Attributes:
        path: Of the checkpoint, or of the folder of weights.
        store: Of the documents.
        clamp_len: Of the model, as it is evaluated.
        same_length: The same.
        device: "cpu" or "cuda".
        threads: Torch's.
        sharing: Workers on one device.
    """

    path: str
    store: str
    clamp_len: int
    same_length: bool
    device: str
    threads: int
    sharing: int

    def open(self) -> tuple[TransformerXL, Store]:
        """Load the model, open the store."""
        torch.set_num_threads(self.threads)
        path, device = Path(self.path), torch.device(self.device)
        loaded = (load_folder if is_weights_folder(path) else load_model)(path, device=device)
        if self.store != loaded.store:
            loaded = loaded.with_store(self.store)
        loaded.model.config = replace(
            loaded.model.config, clamp_len=self.clamp_len, same_length=self.same_length
        )
        return loaded.model, loaded.open_store()


def share_of(count: int, share: tuple[int, int]) -> tuple[int, int]:
    """The part [lo, hi) of `count` things that is worker k's of N; parts differ by one at most."""
    worker, workers = share
    return worker * count // workers, (worker + 1) * count // workers


class Scorer:
    """A model and held-out documents, opened when they are first needed.

    Args:
        opened: Gives them.
        sharing: Scorers on one device.
    """

    def __init__(
        self, opened: Callable[[], tuple[TransformerXL, Store]], *, sharing: int = 1
    ) -> None:
        self._open, self._sharing = opened, sharing
        self._done = 0

    @cached_property
    def _opened(self) -> tuple[TransformerXL, Store]:
        return self._open()

    def sums(self, wanted: Wanted, *, share: tuple[int, int] = ALONE, tell: Tell = quiet) -> Sums:
        """Score the targets of a share of the rows.

        Args:
            wanted: How; the rows are those of all workers.
            share: (k, N).
            tell: Told how many targets are scored.

        Raises:
            ConfigError: They do not fit into memory.
        """
        model, store = self._opened
        mine = share_of(wanted.rows, share)
        self._check(
            replace(wanted, rows=mine[1] - mine[0]),
            inputs=int((store.num_tokens("validation") + 1).sum()),
        )
        sums = sum_rows(model, store, wanted, mine=mine, tell=self._telling(tell))
        assert sums is not None  # noqa: S101 - nobody stops it
        return sums

    def losses(
        self,
        blocks: Sequence[Block],
        measure: Measure,
        *,
        share: tuple[int, int] = ALONE,
        tell: Tell = quiet,
    ) -> Tensor:
        """Score the targets of a share of the blocks with each context length.

        Returns:
            (C, blocks of the share, size), float64.

        Raises:
            ConfigError: They do not fit into memory.
        """
        model, store = self._opened
        low, high = share_of(len(blocks), share)
        inputs = measure.contexts[-1] + measure.size
        self._check(
            Wanted(
                rows=min(measure.rows, high - low),
                segment=min(max(measure.segment, measure.size), inputs)
                if measure.memory
                else inputs,  # a window
                memory=measure.memory,
            ),
            inputs=inputs,
        )
        telling = self._telling(tell)
        return losses_by_context(
            model, store, blocks[low:high], measure, tell=lambda done, _of: telling(done)
        )

    def done(self) -> int:
        """How much of the present work is done, as `tell` is told."""
        return self._done

    def _check(self, wanted: Wanted, *, inputs: int) -> None:
        model, _ = self._opened
        check_room(
            model.config,
            wanted,
            inputs=inputs,
            device=model.content_bias.device,
            sharing=self._sharing,
        )

    def _telling(self, tell: Tell) -> Tell:
        self._done = 0

        def told(done: int) -> None:
            self._done = done
            tell(done)

        return told
