"""How much context a model uses, measured by forgetting.

The same targets are scored again and again, each time by rows that begin to read, with nothing
usable in memory, exactly c tokens before them. To shorten the memory instead would measure another
thing: its states carry text from up to N * M tokens back.

    choose_blocks         places in long documents, `size` targets each, the same for every c
    losses_by_context     (C, blocks, size) losses
    context_points        their means
    effective_context     where a longer context stops to help
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.transformer_xl import TransformerXL
from pipeline.server import Documents
from trainer.evaluation import reader

THRESHOLD = 0.01  # of the paper


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Targets that are scored together.

    Attributes:
        doc_id: Their document.
        start: Offset of the first of their inputs.
    """

    doc_id: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What the numbers depend on, beside the weights.

    Attributes:
        contexts: Context lengths c, ascending.
        size: Targets of a block, read as one segment: target i of it has c + i tokens before its
            own input.
        segment: Tokens read at a time before the block.
        memory: M, states a layer keeps; with 0 context and block are one segment, the window that a
            model without memory is given.
        rows: Blocks read at once; changes no number.
    """

    contexts: tuple[int, ...]
    size: int
    segment: int
    memory: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPoint:
    """The loss with one context length.

    Attributes:
        context: c.
        loss: Mean nats per target.
        error: Standard error, over blocks, of the difference to the loss of the longest context:
            what is nearer to it than this is equal to it as far as these blocks can tell.
    """

    context: int
    loss: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveContext:
    """The effective context length at one ratio.

    Attributes:
        ratio: r, the part of the targets that is looked at: the hardest.
        length: The longest context that was still worth its last step.
        at_least: Every step was worth it: the true length may lie beyond the longest context.
        gains: Relative gain of each step, from each context length to the next.
    """

    ratio: float
    length: int
    at_least: bool
    gains: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def choose_blocks(
    documents: Documents, *, least: int, size: int, most: int, split: Any = "validation"
) -> list[Block]:
    """Choose up to `most` blocks, evenly over all places that have `least` tokens before them.

    Blocks do not overlap and end within their document. Nothing is drawn: the same documents give
    the same blocks.
    """
    doc_ids, inputs = documents.doc_ids(split), documents.num_tokens(split) + 1
    each = np.maximum(inputs - least, 0) // size
    ends = np.cumsum(each)
    total = int(ends[-1]) if len(ends) else 0
    count = min(total, most)
    chosen = [(2 * number + 1) * total // (2 * count) for number in range(count)]
    places = np.searchsorted(ends, chosen, side="right")
    return [
        Block(
            doc_id=int(doc_ids[place]),
            start=least + size * (index - int(ends[place] - each[place])),
        )
        for index, place in zip(chosen, places.tolist(), strict=True)
    ]


def losses_by_context(
    model: TransformerXL,
    documents: Documents,
    blocks: Sequence[Block],
    measure: Measure,
    *,
    tell: Callable[[int, int], None] = lambda _done, _of: None,
) -> Tensor:
    """Score the targets of `blocks` with each context length.

    A block that has fewer than c tokens before it is scored with all of them.

    Args:
        model: In evaluation; where its weights are, is computed.
        documents: The store.
        blocks: At least one.
        measure: How.
        tell: Told how many tokens of how many are read.

    Returns:
        (C, blocks, size), float64, on the host.
    """
    device = model.content_bias.device
    losses = torch.zeros(len(measure.contexts), len(blocks), measure.size, dtype=torch.float64)
    of = sum(context + measure.size for context in measure.contexts) * len(blocks)
    done = 0
    for number, context in enumerate(measure.contexts):
        for low in range(0, len(blocks), measure.rows):
            some = blocks[low : low + measure.rows]
            tokens, offset, targets = (
                part.to(device)
                for part in inputs_of(documents, some, context=context, size=measure.size)
            )
            with torch.inference_mode():
                nll = model.nll(_read_blocks(model, tokens, offset, measure), targets)
            losses[number, low : low + len(some)] = nll.double().cpu()
            done += len(some) * (context + measure.size)
            tell(done, of)
    return losses


def inputs_of(
    documents: Documents, blocks: Sequence[Block], *, context: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that end with `blocks` and begin `context` tokens before them.

    Where a document has fewer tokens before the block, its row is filled up in front; what stands
    there has offset 0, as the document's first token has: none of it is ever seen.

    Returns:
        Tokens and offsets, (R, T) with T at most context + size, and targets (R, size).
    """
    begins = [max(0, block.start - context) for block in blocks]
    width = max(block.start - begin for block, begin in zip(blocks, begins, strict=True)) + size
    tokens = torch.full((len(blocks), width), documents.bos, dtype=torch.int64)
    offset = torch.zeros(len(blocks), width, dtype=torch.int64)
    targets = torch.empty(len(blocks), size, dtype=torch.int64)
    for row, (block, begin) in enumerate(zip(blocks, begins, strict=True)):
        end = block.start + size
        text = torch.from_numpy(documents.read(block.doc_id)[:end].astype("int64"))
        inputs = torch.cat([torch.tensor([documents.bos]), text])  # the last one is a target only
        tokens[row, width - (end - begin) :] = inputs[begin:end]
        offset[row, width - (end - begin) :] = torch.arange(begin, end)
        targets[row] = text[block.start :]
    return tokens, offset, targets


def _read_blocks(model: TransformerXL, tokens: Tensor, offset: Tensor, measure: Measure) -> Tensor:
    """Read rows to their ends, the block as one segment; give its hidden states."""
    read = reader(model, len(tokens), memory=measure.memory)
    before = tokens.shape[1] - measure.size
    if not measure.memory:
        return read(tokens, offset)[:, before:]
    first = before % measure.segment  # segments are counted back from the block
    cuts = [*([0] if first else []), *range(first, before + 1, measure.segment)]
    for low, high in pairwise(cuts):
        read(tokens[:, low:high], offset[:, low:high])
    return read(tokens[:, before:], offset[:, before:])


def context_points(losses: Tensor, contexts: Sequence[int]) -> list[ContextPoint]:
    """Sum up (C, blocks, size) losses, one point a context length."""
    by_block = losses.mean(dim=2)  # (C, blocks)
    apart = by_block - by_block[-1]
    blocks = by_block.shape[1]
    errors = apart.std(dim=1) / math.sqrt(blocks) if blocks > 1 else torch.zeros(len(contexts))
    return [
        ContextPoint(context=context, loss=loss, error=error)
        for context, loss, error in zip(
            contexts, by_block.mean(dim=1).tolist(), errors.tolist(), strict=True
        )
    ]


def effective_context(
    losses: Tensor,
    contexts: Sequence[int],
    *,
    ratio: float,
    group: Sequence[Tensor] = (),
    threshold: float = THRESHOLD,
) -> EffectiveContext:
    """The relative effective context length, of one model or within a group.

    Let l(c, t) be the model's loss of target t with context c, b(c, t) the least that a model of
    the group has, and T(c) the part `ratio` of the targets with the largest b(c, t). A step from c
    to the next length c' gains

        g(c, c') = 1 - exp(mean over T(c) of min(b(c, t), l(c', t)) - mean over T(c) of b(c, t)),

    the relative fall of the perplexity of the targets that are hard with context c. The effective
    length is the first c whose step gains less than `threshold`.

    Source: Dai et al. 2019, section 4.3 and appendix C (RECL). It departs in three points. Without
    a `group` the model is its own: lengths of two models are not comparable then the way the
    paper's are. The step is what `contexts` says, and a longer step gains more. And a target has c
    tokens before its block, and also those of its block that come before it.

    As in the paper, the minimum counts what a longer context mends and forgives what it spoils, so
    that even a context that helps nobody on average has some gain: look at the means too.

    Args:
        losses: (C, ...) in the order of `contexts`.
        contexts: Ascending.
        ratio: r, above 0, at most 1.
        group: Losses of all models that are compared, of the same targets and contexts, this
            model's among them.
        threshold: Least gain.
    """
    flat = losses.flatten(1)
    best = torch.stack([one.flatten(1) for one in group]).amin(0) if group else flat
    count = max(1, round(ratio * flat.shape[1]))
    gains: list[float] = []
    for short, long in zip(best[:-1], flat[1:], strict=True):
        hard = short.topk(count).indices
        fall = torch.minimum(short, long)[hard].mean() - short[hard].mean()
        gains.append(0.0 - math.expm1(float(fall)))
    worth = next((i for i, gain in enumerate(gains) if gain < threshold), len(gains))
    return EffectiveContext(
        ratio=ratio,
        length=contexts[worth],
        at_least=worth == len(gains),
        gains=tuple(gains),
    )
