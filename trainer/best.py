"""How good a run was at its evaluations, as its folder tells: the best, and when to give up.

Read from evaluations/step_*.json and kept nowhere else: a resume drops what lies past its step, so
a run that was killed decides what one that was not decides.
"""

import json
from pathlib import Path

from trainer.evaluation import Scores


def value_of(file: Path, *, metric: str, memory: int) -> float | None:
    """What an evaluation found, lower is better; None where there is no such file.

    Args:
        file: An evaluation of a run, evaluations/step_S.json.
        metric: "eval/loss", "eval/perplexity" or "eval/bits_per_byte".
        memory: The memory length it was scored with; another takes the first one there is.
    """
    if not file.is_file():
        return None
    scores = [Scores.from_json(saved) for saved in json.loads(file.read_text(encoding="utf-8"))]
    chosen = next((score for score in scores if score.memory == memory), scores[0])
    return float(getattr(chosen, metric.removeprefix("eval/")))


def values(folder: Path, *, metric: str, memory: int) -> list[float]:
    """What the evaluations in `folder` found, in the order of steps."""
    found = (
        value_of(file, metric=metric, memory=memory) for file in sorted(folder.glob("step_*.json"))
    )
    return [value for value in found if value is not None]


def is_best(found: list[float]) -> bool:
    """Whether the last value is lower than all before it."""
    return bool(found) and all(found[-1] < value for value in found[:-1])


def without_progress(found: list[float]) -> int:
    """Evaluations since the best one; the earliest of equals is the best."""
    return len(found) - 1 - found.index(min(found)) if found else 0
