"""The arithmetic of the benches, with a clock that is told what to say."""

import time
from collections.abc import Callable

import pytest

from jobs.bench_model import Shape
from jobs.bench_timing import Spread, in_turns, ratio, share, spread
from jobs.bench_train import turn_of


def test_works_take_turns_and_the_first_round_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, done = 0.0, list[str]()
    takes_s = {"ours": [9.0, 1.0, 2.0], "bare": [8.0, 3.0, 4.0]}

    def work(name: str) -> Callable[[], None]:
        def act() -> None:
            nonlocal now_s
            now_s += takes_s[name][done.count(name)]
            done.append(name)

        return act

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    found = in_turns({name: work(name) for name in takes_s}, repeats=2)
    assert found == {"ours": [1.0, 2.0], "bare": [3.0, 4.0]}
    assert done == ["ours", "bare"] * 3


def test_a_ratio_is_of_ours_by_the_other_in_each_turn() -> None:
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == {"ratio": 3.0, "lowest": 2.0, "highest": 4.0}


def test_the_slowest_repeat_is_the_lowest_share_of_the_peak() -> None:
    seconds = spread([2.0, 1.0, 4.0])
    assert seconds == Spread(median=2.0, lowest=1.0, highest=4.0)
    assert share(8.0, seconds, 16.0) == {"ratio": 0.25, "lowest": 0.125, "highest": 0.5}


def test_a_run_is_timed_from_its_last_warm_step_to_its_last() -> None:
    lines = [{"kind": "begin", "time": 0}] + [
        {
            "kind": "step",
            "time": 60_000 + 500 * step + (step == 1) * 100,  # ms since 1970; a slow start
            "train/targets": 24 * step,
            "data/wait_seconds": 5.0 if step <= 2 else 0.1,
        }
        for step in range(1, 7)
    ]
    found = turn_of(lines, bare_s=0.25, start_s=7.0, warm_steps=2, shape=Shape(rows=4, segment=6))
    assert found == {
        "tokens_per_second": 48.0,  # 4 steps of 24 targets in 2 s
        "bare_tokens_per_second": 96.0,  # all rows in the time that a worker takes for its own
        "ratio": 0.5,
        "wait_share": pytest.approx(0.2),
        "start_seconds": 7.0,
    }
