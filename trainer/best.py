"""How good a run was at an evaluation, as its folder tells."""

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
    # Of several lengths, and where that of training was changed since.
    chosen = next((score for score in scores if score.memory == memory), scores[0])
    return float(getattr(chosen, metric.removeprefix("eval/")))
