"""The arithmetic of the benches, with a clock that is told what to say."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from jobs.bench_model import Shape
from jobs.bench_serve import wait_share
from jobs.bench_store import bench_store
from jobs.bench_timing import Spread, in_turns, ratio, share, spread
from jobs.bench_train import turn_of
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer


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


def test_a_turn_waits_for_what_it_waited_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, client = 100.0, Mock(waited_s=30.0)

    def serve() -> None:
        nonlocal now_s
        now_s += 8.0
        client.waited_s += 2.0

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    assert [wait_share(client, serve) for _ in range(2)] == [0.25, 0.25]


def test_a_store_for_a_bench_takes_the_tokenizer_or_plain_bytes(tmp_path: Path) -> None:
    texts = [f"row {number} of light and stone\n" for number in range(40)]
    corpus = tmp_path / "a.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "model").write_bytes(train_tokenizer(texts, vocab_size=288))
    sizes: list[int] = []
    for tokenizer in ("", str(tmp_path / "model")):
        folder = tmp_path / f"of-{len(sizes)}"
        folder.mkdir()
        out = bench_store([str(corpus)], tokenizer=tokenizer, folder=folder)
        sizes.append(Store.open(out).vocab_size)
    assert sizes == [258, 288]
