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

LN2 = math.log(2)
Read = Callable[[Tensor, Tensor], Tensor]  # tokens, offset (B, L) to hidden states (B, L, D)
NUM_BUCKETS = 40  # by powers of two of the offset: more than any document is long


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
    mine = rows_of_rank(rows, rank=group.rank, world_size=group.world_size)
    nats = torch.zeros(NUM_BUCKETS, dtype=torch.float64)
    targets = torch.zeros(NUM_BUCKETS, dtype=torch.int64)
    was_training = model.training
    model.eval()
    try:
        read = reader(model, mine[1] - mine[0], memory=memory)
        batches = validation_batches(store, rows=rows, segment=segment, mine=mine)
        with torch.inference_mode():
            for tokens, offset, wanted in _tensors(batches, group.device):
                if should_stop():
                    return None
                nll = model.nll(read(tokens, offset), wanted)
                _add_by_offset(nats, targets, nll=nll, offset=offset, real=wanted != -100)
    finally:
        model.train(was_training)
    group.sum_on_host(nats)
    group.sum_on_host(targets)
    num_bytes, num_chars, num_words = (
        int(counts.sum()) for counts in store.sizes(store.doc_ids("validation"))
    )
    return Scores(
        step=step,
        segment=segment,
        memory=memory,
        clamp=model.config.clamp_len,
        rows=rows,
        documents=len(store.doc_ids("validation")),
        targets=int(targets.sum()),
        num_bytes=num_bytes,
        num_chars=num_chars,
        num_words=num_words,
        nats=float(nats.sum()),
        nats_by_offset=tuple(nats.tolist()),
        targets_by_offset=tuple(targets.tolist()),
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


def bucket_of_offset(offset: Tensor) -> Tensor:
    """The bucket of each offset: 0 for 0, else 1 + floor(log2(offset)), exact for any int64."""
    bucket = torch.zeros_like(offset)
    for power in range(NUM_BUCKETS - 1):
        bucket += offset >= (1 << power)
    return bucket


def _add_by_offset(
    nats: Tensor, targets: Tensor, *, nll: Tensor, offset: Tensor, real: Tensor
) -> None:
    bucket = bucket_of_offset(offset[real]).cpu()
    nats += torch.bincount(bucket, weights=nll[real].double().cpu(), minlength=NUM_BUCKETS)
    targets += torch.bincount(bucket, minlength=NUM_BUCKETS)


def _tensors(
    batches: Iterator[Batch], device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for batch in batches:
        yield (
            torch.from_numpy(batch.tokens.astype("int64")).to(device),
            torch.from_numpy(batch.offset.astype("int64")).to(device),
            torch.from_numpy(batch.targets.astype("int64")).to(device),
        )
