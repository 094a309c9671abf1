"""Held-out documents scored: every target once, memory carried, sums exact over the ranks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from model.memory import empty_memory
from model.reach import reach_of
from model.recall import Recall
from model.transformer_xl import TransformerXL
from pipeline.batch import Batch
from pipeline.errors import DataError
from pipeline.layout import rows_of_rank
from pipeline.server import validation_batches
from pipeline.store import Store
from trainer.group import Group
from trainer.sums import Sums, add, no_sums

LN2 = math.log(2)
Read = Callable[[Tensor, Tensor], Tensor]  # tokens, offset (B, L) to hidden states (B, L, D)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What an evaluation found, with the settings that the numbers depend on.

    Attributes:
        step: Steps the weights were trained for.
        segment: L, tokens read at a time.
        memory: M, states a layer kept; 0 is none.
        clamp: Largest distance the positions tell apart; 0 tells all.
        rows: Rows the documents were dealt to.
        documents: Documents scored.
        targets: Targets scored: every token and every end of a document, each once.
        num_bytes: UTF-8 bytes of the documents.
        num_chars: Their characters.
        num_words: Their words.
        nats: Summed negative log likelihood of all targets.
        nats_by_offset: The same by bucket of the offset: bucket 0 is offset 0, bucket b holds
            offsets 2**(b-1) to 2**b - 1.
        targets_by_offset: Targets of each bucket.
    """

    step: int
    segment: int
    memory: int
    clamp: int
    rows: int
    documents: int
    targets: int
    num_bytes: int
    num_chars: int
    num_words: int
    nats: float
    nats_by_offset: tuple[float, ...]
    targets_by_offset: tuple[int, ...]

    @property
    def loss(self) -> float:
        """Nats per target."""
        return self.nats / self.targets

    @property
    def perplexity(self) -> float:
        """Of a token; comparable between models of one tokenizer only."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """All nats, those of the ends of documents included, over ln 2 and the bytes of text."""
        return self.nats / LN2 / self.num_bytes

    @property
    def bits_per_char(self) -> float:
        """Like bits_per_byte, per character."""
        return self.nats / LN2 / self.num_chars

    @property
    def bits_per_word(self) -> float:
        """Like bits_per_byte, per run of characters between white space."""
        return self.nats / LN2 / max(1, self.num_words)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values, the derived numbers too."""
        names = ("loss", "perplexity", "bits_per_byte", "bits_per_char", "bits_per_word")
        return asdict(self) | {name: getattr(self, name) for name in names}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "Scores":
        """What `to_json` gave, back again."""
        fields = {name: saved[name] for name in cls.__slots__}
        for name in ("nats_by_offset", "targets_by_offset"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How to score.

    Attributes:
        rows: Rows the documents are dealt to, of all ranks together.
        segment: L.
        memory: M.
    """

    rows: int
    segment: int
    memory: int


def evaluate(
    model: TransformerXL,
    store: Store,
    group: Group,
    *,
    step: int,
    rows: int,
    segment: int,
    memory: int,
    should_stop: Callable[[], bool],
) -> Scores | None:
    """Score the held-out documents of `store` with `memory` states a layer.

    The rows are dealt to the ranks as in training; the training memory is not touched.

    Args:
        model: Its weights are read only.
        store: Where the documents are.
        group: The ranks among which the rows are shared out.
        step: Steps the weights were trained for; kept in the scores.
        rows: Rows of the evaluation, of all ranks together.
        segment: L.
        memory: M.
        should_stop: Asked before each batch, on all ranks alike; True ends the evaluation.

    Returns:
        The same scores on every rank, or None if it was told to stop.
    """
    wanted = Wanted(rows=rows, segment=segment, memory=memory)
    mine = rows_of_rank(rows, rank=group.rank, world_size=group.world_size)
    sums = sum_rows(model, store, wanted, mine=mine, should_stop=should_stop)
    if sums is None:
        return None
    group.sum_on_host(sums.nats)
    group.sum_on_host(sums.targets)
    return scores_of(sums, store, wanted, step=step, clamp=model.config.clamp_len)


def sum_rows(
    model: TransformerXL,
    store: Store,
    wanted: Wanted,
    *,
    mine: tuple[int, int],
    should_stop: Callable[[], bool] = lambda: False,
    tell: Callable[[int], None] = lambda _targets: None,
) -> Sums | None:
    """Score what the rows `mine`, [lo, hi) of all, read; None if told to stop.

    Args:
        model: Its weights are read only; where they are, is computed.
        store: Where the documents are.
        wanted: How.
        mine: The rows.
        should_stop: Asked before each batch.
        tell: Told after each batch how many targets are scored.
    """
    device = model.content_bias.device
    sums = no_sums()
    scored = 0
    was_training = model.training
    model.eval()
    try:
        read = reader(model, mine[1] - mine[0], memory=wanted.memory)
        batches = validation_batches(store, rows=wanted.rows, segment=wanted.segment, mine=mine)
        with torch.inference_mode():
            for tokens, offset, goal in _tensors(batches, device):
                if should_stop():
                    return None
                nll = model.nll(read(tokens, offset), goal)
                scored += add(sums, nll=nll, offset=offset, real=goal != -100)
                tell(scored)
    finally:
        model.train(was_training)
    return sums


def scores_of(sums: Sums, store: Store, wanted: Wanted, *, step: int, clamp: int) -> Scores:
    """The scores that the sums over all rows make."""
    doc_ids = store.doc_ids("validation")
    num_bytes, num_chars, num_words = (int(counts.sum()) for counts in store.sizes(doc_ids))
    return Scores(
        step=step,
        segment=wanted.segment,
        memory=wanted.memory,
        clamp=clamp,
        rows=wanted.rows,
        documents=len(doc_ids),
        targets=int(sums.targets.sum()),
        num_bytes=num_bytes,
        num_chars=num_chars,
        num_words=num_words,
        nats=float(sums.nats.sum()),
        nats_by_offset=tuple(sums.nats.tolist()),
        targets_by_offset=tuple(sums.targets.tolist()),
    )


def reader(model: TransformerXL, rows: int, *, memory: int, by_states: bool = False) -> Read:
    """Read on and on with `memory` states a layer, beginning with none.

    Args:
        model: Its weights must stay as they are.
        rows: Rows of all that is read.
        memory: M.
        by_states: Keep hidden states, as the model is defined, and not their keys and values, which
            gives the same numbers and projects nothing twice.
    """
    if memory and not by_states:  # with no memory there is nothing to save
        return Recall(model, rows, reach_of(model.config, memory)).read
    like = model.content_bias
    kept = empty_memory(model.config, rows, length=memory, device=like.device, dtype=like.dtype)

    def read(tokens: Tensor, offset: Tensor) -> Tensor:
        nonlocal kept
        hidden, kept = model(tokens, offset, kept)
        return hidden

    return read


def no_documents(store: str) -> DataError:
    """The error of a store with nothing held out."""
    return DataError(
        f"{store} holds no validation documents: nothing was held out when it was built. Build it "
        "again with a larger data.held_out."
    )


def _tensors(
    batches: Iterator[Batch], device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for batch in batches:
        yield (
            torch.from_numpy(batch.tokens.astype("int64")).to(device),
            torch.from_numpy(batch.offset.astype("int64")).to(device),
            torch.from_numpy(batch.targets.astype("int64")).to(device),
        )
