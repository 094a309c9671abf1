"""What the bench says has the shape that was promised; its numbers are nobody's test."""

import json
from pathlib import Path

from jobs.bench import in_words
from jobs.bench_pipeline import measure
from pipeline.layout import Layout
from pipeline.tokenizer import train_tokenizer


def test_every_stage_is_measured_beside_a_bare_loop(tmp_path: Path) -> None:
    texts = [f"row {i} of light and stone\n" * (i % 5 + 1) for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (tmp_path / "model").write_bytes(train_tokenizer(texts, vocab_size=288))
    figures = measure(
        [str(tmp_path / "a.jsonl")],
        tokenizer=str(tmp_path / "model"),
        repeats=1,
        layout=Layout(rows=4, segment=8),
    )
    assert [f["name"] for f in figures] == ["encode", "write", "read", "plan", "serve"]
    assert all(f["ours"] > 0 and f["lowest"] <= f["ratio"] <= f["highest"] for f in figures)
    assert all(f["name"] in in_words(figures) for f in figures)
