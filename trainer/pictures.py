"""The pictures of a run: the only file that draws."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainer.context import ContextPoint, EffectiveContext
from trainer.evaluation import Scores

MIN_TARGETS = 50  # a mean over fewer says little
COLORS = ("#1f4e8c", "#c8553d", "#4f8a4a", "#8a6db1", "#777777")
SMOOTH = 0.02  # of the run: half-life of the smoothed loss


def loss_over_steps(lines: Sequence[dict[str, Any]], path: Path, *, title: str) -> None:
    """Draw the training loss, as it was and smoothed, with the held-out loss where it was taken.

    Args:
        lines: The run's metric lines.
        path: The PNG to write.
        title: Above the picture.
    """
    steps = [line for line in lines if line["kind"] == "step"]
    scored = [line for line in lines if line["kind"] == "evaluation" and "eval/loss" in line]
    figure, (axes,) = _frame(title)
    axes.set_xlabel("step")
    axes.set_ylabel("nats per token")
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

    Without memory a token sees at most its own segment, and on average half of it: the distance
    between the lines is what the memory is worth, and it opens where a segment ends.

    Args:
        scores: Evaluations of the same weights with several memory lengths.
        path: The PNG to write.
        title: Above the picture.
    """
    figure, (axes,) = _frame(title)
    _draw_by_offset(axes, scores)
    _save(figure, path)


def memory_sweep(scores: Sequence[Scores], path: Path, *, title: str) -> None:
    """Draw what each memory length scores, and beside it the loss by offset within the document.

    Args:
        scores: Evaluations of the same weights with several memory lengths.
        path: The PNG to write.
        title: Above the picture.
    """
    figure, (by_memory, by_offset) = _frame(title, panels=2)
    ordered = sorted(scores, key=lambda score: score.memory)
    x, y = [score.memory for score in ordered], [score.bits_per_byte for score in ordered]
    by_memory.plot(x, y, "o-", color=COLORS[0])
    for memory, bits in zip(x, y, strict=True):
        by_memory.annotate(
            f"{bits:.3f}", (memory, bits), xytext=(4, 5), textcoords="offset points", fontsize=8
        )
    by_memory.margins(x=0.12, y=0.15)
    by_memory.set_xlabel("memory (states a layer)")
    by_memory.set_ylabel("bits per byte, held-out documents")
    _draw_by_offset(by_offset, scores)
    _save(figure, path)


def loss_by_context(
    points: Sequence[ContextPoint],
    effective: Sequence[EffectiveContext],
    scores: Sequence[Scores],
    path: Path,
    *,
    title: str,
) -> None:
    """Draw the loss of the same targets by their true context, and the loss by offset beside it.

    Args:
        points: For each context length its loss.
        effective: Effective context lengths, drawn as vertical lines.
        scores: Evaluations of the same weights, for the second panel.
        path: The PNG to write.
        title: Above the picture.
    """
    figure, (by_context, by_offset) = _frame(title, panels=2)
    x, y = [point.context for point in points], [point.loss for point in points]
    by_context.plot(x, y, "o-", color=COLORS[0], markersize=4)
    by_context.fill_between(
        x,
        [point.loss - point.error for point in points],
        [point.loss + point.error for point in points],
        color=COLORS[0],
        alpha=0.15,
        linewidth=0,
    )
    for one, color, style in zip(effective, COLORS[1:], ("--", "-.", ":"), strict=False):
        sign = "at least " if one.at_least else ""
        by_context.axvline(
            one.length,
            color=color,
            linestyle=style,
            linewidth=1.4,
            label=f"effective, r = {one.ratio:g}: {sign}{one.length}",
        )
    by_context.legend(frameon=False, fontsize=8)
    by_context.set_xlabel("tokens of context before the scored block")
    by_context.set_ylabel("nats per token, the same targets")
    _draw_by_offset(by_offset, scores)
    _save(figure, path)


def _draw_by_offset(axes: Axes, scores: Sequence[Scores]) -> None:
    axes.set_xlabel("offset within the document (tokens)")
    axes.set_ylabel("nats per token")
    colors = COLORS
    for score, color in zip(scores, colors * (1 + len(scores) // len(colors)), strict=False):
        buckets = [
            (bucket, nats / count)
            for bucket, (nats, count) in enumerate(
                zip(score.nats_by_offset, score.targets_by_offset, strict=True)
            )
            if count >= MIN_TARGETS
        ]
        axes.plot(
            [_middle(bucket) for bucket, _ in buckets],
            [loss for _, loss in buckets],
            "o-",
            color=color,
            label=f"memory {score.memory}, {score.bits_per_byte:.3f} bits per byte",
        )
    axes.set_xscale("symlog", linthresh=1, base=2)
    if scores:
        axes.axvline(scores[0].segment, color="#999999", linestyle=":", linewidth=1)
        axes.annotate(
            f"one segment, {scores[0].segment} tokens",
            (scores[0].segment, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(4, -12),
            textcoords="offset points",
            fontsize=8,
            color="#666666",
        )
    axes.legend(frameon=False, fontsize=8)


def _middle(bucket: int) -> float:
    """The middle, by ratio, of the offsets in a bucket of evaluation.bucket_of_offset."""
    return 0.0 if bucket == 0 else 2.0 ** (bucket - 0.5)


def _smooth(values: Sequence[float]) -> list[float]:
    weight = 0.5 ** (1 / max(1.0, SMOOTH * len(values)))
    smoothed, level, mass = [], 0.0, 0.0
    for value in values:
        level, mass = weight * level + (1 - weight) * value, weight * mass + (1 - weight)
        smoothed.append(level / mass)
    return smoothed


def _frame(title: str, *, panels: int = 1) -> tuple[Figure, list[Axes]]:
    # No pyplot: nothing global, no window.
    figure = Figure(figsize=(8 if panels == 1 else 12, 4.5), layout="constrained")
    drawn = figure.subplots(1, panels, squeeze=False)
    all_axes: list[Axes] = list(drawn[0])
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#eeeeee")
    return figure, all_axes


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120)
