"""The pictures of a run: the only file that draws."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.ticker import MaxNLocator

from pipeline.files import write_whole
from trainer.context import ContextPoint, EffectiveContext
from trainer.evaluation import Scores

MIN_TARGETS = 50  # a mean over fewer says little
COLORS = ("#1f4e8c", "#c8553d", "#4f8a4a", "#8a6db1", "#777777", "#c9a227", "#3a9ca6", "#b5476b")
SMOOTH = 0.01  # of the run: half-life of the smoothed loss


def loss_over_steps(lines: Sequence[dict[str, Any]], path: Path, *, title: str) -> None:
    """Draw the training loss, as it was and smoothed, with the held-out loss where it was taken.

    Args:
        lines: The run's metric lines.
        path: The PNG to write.
        title: Above the picture.
    """
    steps = [line for line in lines if line["kind"] == "step" and line["train/loss"] is not None]
    scored = [line for line in lines if line["kind"] == "evaluation" and "eval/loss" in line]
    figure, axes = _frame(title, x="step", y="nats per token")
    x, y = [line["step"] for line in steps], [line["train/loss"] for line in steps]
    axes.plot(x, y, color="#b8c4d6", linewidth=0.8, label="training, each step")
    axes.plot(x, _smooth(y), color="#1f4e8c", linewidth=1.8, label="training, smoothed")
    if scored:
        axes.plot(
            [line["step"] for line in scored],
            [line["eval/loss"] for line in scored],
            "o-",
            color="#c8553d",
            label="held-out documents",
        )
    axes.legend(frameon=False)
    _save(figure, path)


def loss_by_offset(scores: Sequence[Scores], path: Path, *, title: str) -> None:
    """Draw the held-out loss by offset within the document, a line for each memory length.

    Below it stands what each memory saves against the shortest one. Without memory a token sees at
    most its own segment, and on average half of it: the saving opens where a segment ends.

    Args:
        scores: Evaluations of the same weights with several memory lengths.
        path: The PNG to write.
        title: Above the picture.
    """
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    _draw_by_offset(figure, figure.add_gridspec(1, 1)[0], scores, title=title)
    _save(figure, path)


def memory_sweep(scores: Sequence[Scores], path: Path, *, title: str) -> None:
    """Draw what each memory length scores, and beside it `loss_by_offset`.

    Args:
        scores: Evaluations of the same weights with several memory lengths.
        path: The PNG to write.
        title: Above the picture.
    """
    figure, axes = _beside_offsets(scores)
    _dress(axes, title, x="memory (states a layer)", y="bits per byte, held-out documents")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    ordered = sorted(scores, key=lambda score: score.memory)
    x, y = [score.memory for score in ordered], [score.bits_per_byte for score in ordered]
    axes.plot(x, y, "o-", color=COLORS[0])
    for memory, bits in zip(x, y, strict=True):
        axes.annotate(
            f"{bits:.3f}", (memory, bits), xytext=(4, 5), textcoords="offset points", fontsize=8
        )
    axes.margins(x=0.12, y=0.15)
    _save(figure, path)


def loss_by_context(
    points: Sequence[ContextPoint],
    effective: Sequence[EffectiveContext],
    scores: Sequence[Scores],
    path: Path,
    *,
    title: str,
) -> None:
    """Draw the loss of the same targets by their true context, and beside it `loss_by_offset`.

    The band is the standard error of the difference to the longest context.

    Args:
        points: For each context length its loss.
        effective: Effective context lengths, drawn as vertical lines.
        scores: Evaluations of the same weights.
        path: The PNG to write.
        title: Above the picture.
    """
    figure, axes = _beside_offsets(scores)
    _dress(axes, title, x="tokens of context before the scored block", y="nats per token")
    x, y = [point.context for point in points], [point.loss for point in points]
    axes.plot(x, y, "o-", color=COLORS[0], markersize=4)
    low = [point.loss - point.error for point in points]
    high = [point.loss + point.error for point in points]
    axes.fill_between(x, low, high, color=COLORS[0], alpha=0.15, linewidth=0)
    for one, color, style in zip(effective, COLORS[1:], ("--", "-.", ":"), strict=False):
        sign = "at least " if one.at_least else ""
        label = f"effective, r = {one.ratio:g}: {sign}{one.length}"
        axes.axvline(one.length, color=color, linestyle=style, linewidth=1.4, label=label)
    axes.legend(frameon=False)
    _save(figure, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCurve:
    """What one of two models makes of context.

    Attributes:
        label: Whose it is.
        points: For each context length its loss.
        effective: Effective context lengths.
        by_place: Nats per token by place in the block, with the shortest and the longest context.
    """

    label: str
    points: Sequence[ContextPoint]
    effective: Sequence[EffectiveContext]
    by_place: tuple[Sequence[float], Sequence[float]]


def two_by_context(curves: Sequence[ContextCurve], path: Path, *, title: str) -> None:
    """Draw what models make of context, and beside it the loss by place in the segment.

    On the right the upper line of a model, with the shortest context, falls along the segment: what
    stands first in it has least to go by.

    Args:
        curves: Of the same targets.
        path: The PNG to write.
        title: Above the picture.
    """
    figure = Figure(figsize=(13, 6.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _dress(left, title, x="tokens of context before the scored block", y="nats per token")
    _dress(right, "by place in the segment", x="place in the scored block", y="nats per token")
    for curve, color in zip(curves, COLORS, strict=False):
        contexts = [point.context for point in curve.points]
        lengths = ", ".join(
            f"{'at least ' if one.at_least else ''}{one.length} (r = {one.ratio:g})"
            for one in curve.effective
        )
        label = f"{curve.label}\neffective: {lengths}"
        losses = [point.loss for point in curve.points]
        left.plot(contexts, losses, "o-", color=color, label=label, markersize=4)
        for end, style in ((0, ":"), (-1, "-")):
            right.plot(
                curve.by_place[end],
                style,
                color=color,
                label=f"{curve.label}, {contexts[end]} tokens before it",
            )
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=9)
    _save(figure, path)


def _beside_offsets(scores: Sequence[Scores]) -> tuple[Figure, Axes]:
    """A picture with `loss_by_offset` in its right half, and the axes of its left half."""
    figure = Figure(figsize=(13, 6.5), layout="constrained")
    left, right = figure.add_gridspec(1, 2)
    _draw_by_offset(figure, right, scores, title="by offset within the document")
    return figure, figure.add_subplot(left)


def _draw_by_offset(
    figure: Figure, place: SubplotSpec, scores: Sequence[Scores], *, title: str
) -> None:
    """Draw losses and, below them, what is saved against the shortest memory, if there are more."""
    shortest = min(scores, key=lambda score: score.memory)
    several = len(scores) > 1
    grid = place.subgridspec(2 if several else 1, 1, height_ratios=(2, 1) if several else (1,))
    panels = [figure.add_subplot(grid[0])]
    if several:
        panels.append(figure.add_subplot(grid[1], sharex=panels[0]))
        _dress(panels[1], "", x="", y="nats saved")
        panels[0].tick_params(labelbottom=False)
        panels[1].axhline(0, color="#999999", linewidth=0.8)
    _dress(panels[0], title, x="", y="nats per token")
    panels[-1].set_xlabel("offset within the document (tokens)")
    base = _by_bucket(shortest)
    for score, color in zip(scores, COLORS * (1 + len(scores) // len(COLORS)), strict=False):
        label = f"memory {score.memory}, {score.bits_per_byte:.3f} bits per byte"
        mine = _by_bucket(score)
        x = [_middle(bucket) for bucket in mine]
        panels[0].plot(x, list(mine.values()), "o-", color=color, label=label, markersize=4)
        if score is not shortest:
            saved = [base[bucket] - mine[bucket] for bucket in mine]
            panels[1].plot(x, saved, "o-", color=color, markersize=4)
    for axes in panels:
        axes.axvline(shortest.segment, color="#999999", linestyle=":", linewidth=1)
    panels[-1].annotate(
        f"one segment, {shortest.segment} tokens",
        (shortest.segment, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-6, -12),
        textcoords="offset points",
        horizontalalignment="right",
        fontsize=8,
        color="#666666",
    )
    panels[0].set_xscale("symlog", linthresh=1, base=2)
    end = 2**0.5 * max(_middle(bucket) for bucket in base)  # of the last bucket
    panels[0].set_xlim(left=-0.5, right=max(end, 1.0))
    # Below all that is drawn: a curve may go anywhere, and there may be many.
    panels[-1].legend(
        handles=panels[0].get_lines()[: len(scores)],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.3 if several else -0.12),
        ncols=2,
        frameon=False,
        fontsize=9,
    )


def _by_bucket(score: Scores) -> dict[int, float]:
    """Mean loss of each bucket that holds enough targets."""
    pairs = zip(score.nats_by_offset, score.targets_by_offset, strict=True)
    return {
        bucket: nats / count for bucket, (nats, count) in enumerate(pairs) if count >= MIN_TARGETS
    }


def _middle(bucket: int) -> float:
    """The middle, by ratio, of the offsets in a bucket of sums.bucket_of_offset."""
    return 0.0 if bucket == 0 else 2.0 ** (bucket - 0.5)


def _smooth(values: Sequence[float]) -> list[float]:
    weight = 0.5 ** (1 / max(1.0, SMOOTH * len(values)))
    smoothed, level, mass = [], 0.0, 0.0
    for value in values:
        level, mass = weight * level + (1 - weight) * value, weight * mass + (1 - weight)
        smoothed.append(level / mass)
    return smoothed


def _frame(title: str, *, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.5), layout="constrained")  # no pyplot: nothing global, no window
    axes = figure.subplots()
    _dress(axes, title, x=x, y=y)
    return figure, axes


def _dress(axes: Axes, title: str, *, x: str, y: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee")


def _save(figure: Figure, path: Path) -> None:
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    write_whole(str(path), drawn.getvalue())  # no half picture, and the old one stays till then
