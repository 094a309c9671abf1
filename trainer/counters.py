"""What the decisions of a run read beside its step: frozen, in every checkpoint."""

import math
from dataclasses import dataclass, replace

SKIPS_IN_ROW = 3  # updates, after which a run is stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """All that decides and is neither a tensor nor a row.

    Attributes:
        skipped: Updates skipped so far.
        skipped_in_row: Updates skipped since the last applied one.
        targets: Targets that entered a loss.
        norm_mean: Usual gradient norm, for the spike guard.
        norm_count: Norms in that mean.
        metric: What `best` is a value of; empty before the first evaluation.
        best: Lowest value that an evaluation found; None before the first one that is a number.
        best_step: Step of that evaluation.
        stale: Evaluations since then.
        scored: Step of the last evaluation that is in these counters.
        unscored_s: Seconds of training since the last evaluation, for evaluate.minutes.
    """

    skipped: int = 0
    skipped_in_row: int = 0
    targets: int = 0
    norm_mean: float = 0.0
    norm_count: int = 0
    metric: str = ""
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    scored: int = 0
    unscored_s: float = 0.0


def count_evaluation(counters: Counters, *, step: int, metric: str, value: float) -> Counters:
    """The counters after the evaluation of `step` found `value`, where lower is better.

    An evaluation that is in them already changes nothing: it is met again where a run goes on at
    the very step. Of equal values the earlier one is the best. One that is not a number is never
    the best. Another metric than before begins anew, for the two cannot be compared.
    """
    if metric != counters.metric:
        counters = replace(counters, metric=metric, best=None, best_step=0, stale=0, scored=0)
    if step <= counters.scored:
        return counters
    better = not math.isnan(value) and (counters.best is None or value < counters.best)
    if better:
        return replace(counters, best=value, best_step=step, stale=0, scored=step)
    return replace(counters, stale=counters.stale + 1, scored=step)
