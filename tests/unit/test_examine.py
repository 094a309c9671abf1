"""What a tokenizer is said to lose is what it loses; a huge corpus is not read whole."""

import io
import json
from pathlib import Path

import pytest
import sentencepiece

from pipeline.examine import examine, losses
from pipeline.sample import TextDraw, plan_sample
from pipeline.tokenizer import Tokenizer, train_tokenizer
from tests.unit.test_tokenizer import TEXTS


def foreign() -> Tokenizer:
    """A model with sentencepiece's own defaults."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in TEXTS for line in text.split("\n")),
        model_writer=out,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return Tokenizer(out.getvalue())


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "byte"])
def test_ours_lose_nothing(kind: str) -> None:
    model = Tokenizer(train_tokenizer(TEXTS, vocab_size=285, model_type=kind))
    report = examine(model, [*TEXTS, "é \u2581"])
    assert (report.loses, report.round_trip_failures, report.unknown) == ((), 0, 0)
    assert report.documents == len(TEXTS) + 1
    assert report.bytes == sum(len(text.encode()) for text in TEXTS) + 6
    assert report.bytes_per_token == report.bytes / report.tokens
    assert report.fallback == 1 if kind == "byte" else 0 < report.fallback < 0.01


def test_a_model_from_elsewhere_is_told_what_it_loses() -> None:
    lost = losses(foreign())
    assert {"line ends", "tabs", "runs of blanks", "rare letters", "full-width letters"} <= set(
        lost
    )
    report = examine(foreign(), ["the river of light", "two\nlines", "\U00012345"])
    assert report.round_trip_failures == 2
    assert report.unknown > 0


def test_of_a_corpus_that_is_large_a_seeded_part_is_read_from_all_over_it(tmp_path: Path) -> None:
    for name in "abcd":
        lines = (json.dumps({"text": f"{name} {i} " + "x" * 2_000}) for i in range(800))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    plan = plan_sample([str(tmp_path)], sample_bytes=200_000, seed=1)
    assert 1_600_000 <= plan.num_bytes < 2_200_000
    assert len({e.source for task in plan.tasks for e in task.extents}) >= 3
    assert plan_sample([str(tmp_path)], sample_bytes=200_000, seed=1) == plan
    assert plan_sample([str(tmp_path)], sample_bytes=200_000, seed=2) != plan
    whole = plan_sample([str(tmp_path)], sample_bytes=1_000_000, seed=1)
    assert whole.num_bytes > 6_400_000


def test_texts_are_drawn_while_they_pass() -> None:
    texts = [f"{i:04}" for i in range(1_000)]
    draws = [TextDraw(sample_bytes=80, seed=seed) for seed in (1, 1, 2)]
    for draw in draws:
        assert list(draw.passing(texts)) == texts
    first, same, other = (draw.sample() for draw in draws)
    assert first == same != other
    assert len(first) == 20
    assert first == sorted(first)
    assert max(map(int, first)) > 500 > min(map(int, first))
