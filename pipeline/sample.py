"""Texts of any length -> short pieces within a budget of bytes, each as likely as any other."""

import heapq
import random
from collections.abc import Iterable, Iterator, Sequence

from pipeline.corpus import Plan, SourceOptions, Task, plan_tasks

PIECE_CHARS = 2_000  # at most 8,000 bytes: sentencepiece drops what is longer than it is told


_ENOUGH = 8  # times the sample's size: what is read for it
_LEAST_TASK = 1 << 18  # bytes of a stretch of a corpus that is too large to be read whole
_STRETCHES = 2_000  # into which such a corpus is cut, about


def plan_sample(
    inputs: Sequence[str], *, sample_bytes: int, seed: int, options: SourceOptions | None = None
) -> Plan:
    """The stretches of a corpus that a tokenizer is trained on: all of them if they are not many.

    Of a corpus that holds more than eight times the sample a seeded draw of stretches is read, all
    over it, until eight times the sample have come together.

    Raises:
        DataError: As `plan_tasks`.
    """
    whole = plan_tasks(inputs, task_bytes=1 << 25, options=options)
    if whole.num_bytes <= _ENOUGH * sample_bytes:
        return whole
    step = max(_LEAST_TASK, min(1 << 25, whole.num_bytes // _STRETCHES))
    fine = plan_tasks(inputs, task_bytes=step, options=options)
    return Plan(
        tasks=_drawn(fine.tasks, enough=_ENOUGH * sample_bytes, seed=seed), ignored=fine.ignored
    )


def _drawn(tasks: Sequence[Task], *, enough: int, seed: int) -> tuple[Task, ...]:
    draw = random.Random(seed)  # noqa: S311 (a sample, no secret)
    order = sorted(range(len(tasks)), key=lambda _: draw.random())
    taken: list[int] = []
    size = 0
    for index in order:
        if size >= enough:
            break
        taken.append(index)
        size += tasks[index].num_bytes
    return tuple(tasks[index] for index in sorted(taken))


class TextDraw:
    """A seeded draw of whole texts within a budget, taken while they pass on to somebody else.

    Each is as likely as any other; at least one is kept.
    """

    def __init__(self, *, sample_bytes: int, seed: int) -> None:
        self._budget = sample_bytes
        self._draw = random.Random(seed)  # noqa: S311 (a sample, no secret)
        self._kept: list[tuple[float, int, str]] = []

    def passing(self, texts: Iterable[str]) -> Iterator[str]:
        """The same texts."""
        size = 0
        for place, text in enumerate(texts):
            heapq.heappush(self._kept, (-self._draw.random(), place, text))
            size += len(text.encode())
            while size > self._budget and len(self._kept) > 1:
                size -= len(heapq.heappop(self._kept)[2].encode())
            yield text

    def sample(self) -> list[str]:
        """What was kept, in the order it came."""
        return [text for _, _, text in sorted(self._kept, key=lambda entry: entry[1])]


def sample_pieces(texts: Iterable[str], *, sample_bytes: int, seed: int) -> list[str]:
    """A seeded draw over all pieces of all texts, in the order of the corpus.

    Every piece gets a number by its place, and those with the smallest are kept: one pass, memory
    for the sample only, and a long document gives as much as its length. The same texts and seed
    give the same sample.

    Args:
        texts: Whole documents.
        sample_bytes: UTF-8 bytes to keep; all pieces if the texts hold no more.
        seed: Of the draw.
    """
    draw = random.Random(seed)  # noqa: S311 (a sample, no secret); random() is stable for ever
    kept: list[tuple[float, int, str, int]] = []  # (minus the number, place, piece, bytes)
    size = 0
    for place, piece in enumerate(piece for text in texts for piece in pieces_of(text)):
        length = len(piece.encode())
        heapq.heappush(kept, (-draw.random(), place, piece, length))
        size += length
        while size > sample_bytes and len(kept) > 1:
            size -= heapq.heappop(kept)[3]
    return [piece for _, _, piece, _ in sorted(kept, key=lambda entry: entry[1])]


def pieces_of(text: str) -> Iterator[str]:
    """Lines with their ends, those above `PIECE_CHARS` cut (at a blank if there is one)."""
    for line in text.splitlines(keepends=True):
        at = 0
        while len(line) - at > PIECE_CHARS:
            blank = line.rfind(" ", at + 1, at + PIECE_CHARS)
            stop = blank if blank > 0 else at + PIECE_CHARS
            yield line[at:stop]
            at = stop
        yield line[at:]
