"""Text from a model, one token at a time, with what was read kept in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.config import require
from model.noise import uniform
from model.reach import Reach
from model.recall import Recall
from model.transformer_xl import TransformerXL

_PIECE = 256  # tokens of a prompt read at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: Divides the log probabilities; 0 takes the likeliest token.
        top_k: Chooses among so many of the likeliest; 0 among all.
        top_p: Chooses among the likeliest that together have this probability.
        seed: The same seed, prompt and place in the batch give the same text, whatever stands in
            the other places.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            0 <= self.temperature < float("inf"),
            f"temperature = {self.temperature} must be 0 or more, and finite.",
        )
        require(self.top_k >= 0, f"top_k = {self.top_k} must be 0 (all) or more.")
        require(0 < self.top_p <= 1, f"top_p = {self.top_p} must lie in (0, 1].")


def generate(
    model: TransformerXL,
    prompt: Sequence[int],
    *,
    eod: int,
    max_tokens: int,
    sampling: Sampling = Sampling(),
    memory: int | None = None,
) -> Iterator[int]:
    """Go on with one prompt; as `generate_rows`."""
    rows = generate_rows(
        model, [prompt], eod=eod, max_tokens=max_tokens, sampling=sampling, memory=memory
    )
    for ids in rows:
        if ids[0] is not None:
            yield ids[0]


def generate_rows(
    model: TransformerXL,
    prompts: Sequence[Sequence[int]],
    *,
    eod: int,
    max_tokens: int,
    sampling: Sampling = Sampling(),
    memory: int | None = None,
) -> Iterator[list[int | None]]:
    """Go on with several prompts at once, of any lengths.

    Each token sees the `memory` tokens before it, so the text does not depend on how the prompt is
    read.

    Args:
        model: Whose weights stay as they are until the end.
        prompts: Ids, each the beginning of a document: BOS first.
        eod: Id that ends a document.
        max_tokens: Tokens to make for a prompt at most.
        sampling: How to choose.
        memory: Tokens to look back on; None takes the config's.

    Yields:
        The next id of each prompt; None for one that has ended. EOD itself is not given out.

    Raises:
        ModelError: A prompt is empty, or no memory is left to look back on.
    """
    M = model.config.memory if memory is None else memory
    require(M > 0, "Without memory a token would see no other: give generation a memory.")
    require(
        len(prompts) > 0 and all(len(prompt) > 0 for prompt in prompts),
        "A prompt is empty; wanted at least BOS in each, and one prompt or more.",
    )
    window = M if model.config.same_length else M + 1
    reach = Reach(memory=M, clamp_len=model.config.clamp_len, window=window)
    recall = Recall(model, len(prompts), reach)
    device = model.content_bias.device
    tokens, offset = (x.to(device) for x in _padded(prompts))
    longest = tokens.shape[1]
    for low in range(0, longest - 1, _PIECE):
        piece = slice(low, min(low + _PIECE, longest - 1))
        recall.read(tokens[:, piece], offset[:, piece])
    tokens, offset = tokens[:, -1:], offset[:, -1:]
    going = [True] * len(prompts)
    for step in range(max_tokens):
        with torch.no_grad():
            log_prob = model.log_prob(recall.read(tokens, offset)[:, -1])
        chosen = choose(log_prob, sampling, step=step)
        ids = chosen.tolist()
        going = [on and token != eod for on, token in zip(going, ids, strict=True)]
        if not any(going):
            return
        yield [token if on else None for on, token in zip(going, ids, strict=True)]
        tokens, offset = chosen[:, None], offset + 1


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Align prompts at their ends.

    What stands before a prompt has offset 0 and so does the prompt's first token: none of it is
    ever seen.

    Returns:
        Tokens and offsets, (B, longest).
    """
    longest = max(len(prompt) for prompt in prompts)
    before = [longest - len(prompt) for prompt in prompts]
    tokens = [[prompt[0]] * pad + list(prompt) for prompt, pad in zip(prompts, before, strict=True)]
    offsets = [[0] * pad + list(range(longest - pad)) for pad in before]
    return torch.tensor(tokens), torch.tensor(offsets)


def choose(log_prob: Tensor, sampling: Sampling, *, step: int) -> Tensor:
    """Choose the next id of each row.

    Args:
        log_prob: (B, V).
        sampling: How.
        step: Tokens chosen before; each step of each row has its own random number.

    Returns:
        (B,) int64.
    """
    if sampling.temperature == 0:
        return log_prob.argmax(dim=-1)
    scores = log_prob.double() / sampling.temperature
    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    p = ordered.softmax(dim=-1)
    before = p.cumsum(dim=-1) - p  # probability of all that are likelier
    p = p.masked_fill(before >= sampling.top_p, 0)
    if sampling.top_k:
        p[:, sampling.top_k :] = 0
    total = p.cumsum(dim=-1)
    rows = torch.arange(len(p), device=p.device)
    whole = total[:, -1:].contiguous()
    point = uniform(sampling.seed, step, rows)[:, None] * whole
    last = torch.searchsorted(total, whole)  # rounding must not reach what has no probability
    place = torch.minimum(torch.searchsorted(total, point, right=True), last)
    return ids.gather(1, place)[:, 0]
