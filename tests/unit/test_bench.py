"""What the bench says has the shape that was promised; its numbers are nobody's test."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from jobs import bench_build
from jobs.bench import in_words
from jobs.bench_pipeline import measure
from jobs.entry import Exit
from pipeline.errors import DataError
from pipeline.layout import Layout
from pipeline.progress import BuildProgress, Seen
from pipeline.tokenizer import train_tokenizer
from tests.command import code_of


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


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("pipeline", "--workers", "2"), "--workers"),
        (("build", "--rows", "64"), "--rows"),
        (("build", "--segment", "512"), "--segment"),
        (("model", "--rows", "2"), "--rows"),
        (("attention", "corpus"), "INPUTS"),
        (("serve", "--launcher", "local"), "--launcher"),
        (("generate", "--tokenizer", "t"), "--tokenizer"),
    ],
)
def test_an_option_that_a_bench_does_not_use_is_refused(
    words: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("bench", *words) == Exit.BAD_USE
    assert f"`bench {words[0]}` uses no {name}" in capsys.readouterr().err


def test_an_actor_that_does_not_say_what_the_build_took_it_flatters_no_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "byte").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))

    def build(*_: object, progress: Callable[[BuildProgress], None], **__: object) -> None:
        heard = BuildProgress(tasks=1, bytes=14, builders=(Seen(cpu_s=1.0),))
        progress(heard)
        progress(replace(heard, builders=()))  # nobody answered at the end

    monkeypatch.setattr(bench_build, "local_ray", lambda **_: nullcontext())
    monkeypatch.setattr(bench_build, "build_store_with_actors", build)
    with pytest.raises(DataError, match="Only 0 of 1 actors said"):
        bench_build.measure_build(
            [str(tmp_path / "a.jsonl")], tokenizer=str(tmp_path / "byte"), repeats=1
        )
