"""How good a run was at an evaluation, as its folder tells."""

import json
from pathlib import Path

from pipeline.errors import DataError
from trainer.evaluation import Scores


def value_of(file: Path, *, metric: str, memory: int) -> float | None:
    """What an evaluation found, lower is better; None where it was not made with this memory.

    Values of different memory lengths cannot be compared: a longer one is better by itself.

    Args:
        file: An evaluation of a run, evaluations/step_S.json; it need not be there.
        metric: "eval/loss", "eval/perplexity" or "eval/bits_per_byte".
        memory: The memory length of training.

    Raises:
        DataError: The file is damaged.
    """
    if not file.is_file():
        return None
    return value_in(scores_in(file), metric=metric, memory=memory)


def value_in(scores: list[Scores], *, metric: str, memory: int) -> float | None:
    """The same of the scores themselves."""
    chosen = next((score for score in scores if score.memory == memory), None)
    return None if chosen is None else float(getattr(chosen, metric.removeprefix("eval/")))


def scores_in(file: Path) -> list[Scores]:
    """The scores in an evaluation of a run, one a memory length.

    Raises:
        DataError: The file is damaged.
    """
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        return [Scores.from_json(one) for one in saved]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is damaged: {error!r}. Remove it, and the run scores that step again where it "
            "comes to it; or put it back from a copy."
        ) from error
