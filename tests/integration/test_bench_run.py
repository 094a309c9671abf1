"""The benches of a run: they run, and say what they promise; the numbers are nobody's test."""

import json
from dataclasses import replace
from pathlib import Path

from jobs.bench_model import MODEL, Shape
from jobs.bench_serve import measure_serve
from jobs.bench_table import table
from jobs.bench_train import measure_train
from pipeline.layout import Layout


def corpus(folder: Path) -> list[str]:
    texts = [f"row {i} of light and stone\n" * (i % 5 + 1) for i in range(60)]
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [str(path)]


def test_serving_is_measured_from_an_actor_and_in_place(tmp_path: Path) -> None:
    found = measure_serve(
        corpus(tmp_path), layout=Layout(rows=4, segment=8), steps=20, step_s=0.001, repeats=1
    )
    assert [figure["name"] for figure in found["figures"]] == ["served actor", "served in place"]
    assert all(f["steps_per_second"] > 0 and f["wait_share"] >= 0 for f in found["figures"])
    assert "served actor" in table(found)


def test_a_run_is_measured_beside_bare_steps(tmp_path: Path) -> None:
    sizes = {"layers": 1, "width": 16, "heads": 2, "head_width": 8, "inner_width": 16}
    found = measure_train(
        corpus(tmp_path),
        shape=Shape(rows=4, segment=8),
        config=replace(MODEL, **sizes),
        steps=20,
        warm_steps=4,
        every=10,
        launcher="local",
    )
    figure = found["figures"][0]
    assert figure["tokens_per_second"] > 0
    assert 0 <= figure["wait_share"] <= 1
    assert figure["start_seconds"] > 0
    assert figure["resume_seconds"] > 0
    assert "longrow train" in table(found)
