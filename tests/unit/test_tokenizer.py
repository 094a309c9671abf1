"""Training that is the same every time and quiet, and files that are refused in words."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from pipeline.errors import DataError
from pipeline.sample import PIECE_CHARS, pieces_of, sample_pieces
from pipeline.settings import SettingsError, TokenizerSettings
from pipeline.tokenizer import Tokenizer, train_from_settings, train_tokenizer

WORDS = ["river", "stone", "walking", "the", "of", "light", "house", "remember", "\n", "42"]


def prose(num_words: int, seed: int = 0) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, num_words))


TEXTS = [prose(2_000, seed) for seed in range(4)]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_the_same_texts_train_the_same_bytes(kind: str) -> None:
    first = train_tokenizer(TEXTS, vocab_size=285, model_type=kind)
    assert train_tokenizer(iter(TEXTS), vocab_size=285, model_type=kind) == first


def test_training_says_nothing_on_the_terminal() -> None:
    code = (
        "from pipeline.tokenizer import train_tokenizer as train\n"
        "train(['the river of stone and light\\n' * 50] * 9, vocab_size=278)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_long_document_gives_to_the_sample_as_much_as_its_length() -> None:
    endless = "x" * 9_000 + "\n" + "word " * 20_000
    short = [f"{i}\n" for i in range(5_000)]
    sample = sample_pieces([endless, *short], sample_bytes=40_000, seed=3)
    size = sum(map(len, sample))
    assert 35_000 < size <= 40_000
    assert sum(len(piece) for piece in sample if not piece.strip().isdigit()) > size / 2
    assert "".join(pieces_of(endless)) == endless
    assert max(map(len, pieces_of(endless))) <= PIECE_CHARS
    assert sample_pieces(["a\nb\n", "c"], sample_bytes=99, seed=1) == ["a\n", "b\n", "c"]
    assert sample == sample_pieces(iter([endless, *short]), sample_bytes=40_000, seed=3)
    assert sample != sample_pieces([endless, *short], sample_bytes=40_000, seed=4)


def test_a_document_longer_than_sentencepiece_takes_is_trained_on() -> None:
    model = Tokenizer(train_tokenizer(["zyxwv " * 50_000], vocab_size=270))
    assert len(model.encode("zyxwv zyxwv")) <= 4  # a piece of its own, or one with its blank


@pytest.mark.parametrize(
    ("texts", "vocab_size", "says"),
    [
        ([], 300, "no text to train"),
        ([""], 300, "no text to train"),
        (["hello world\n" * 5], 4_096, "too small for a vocabulary of 4,096: 60 bytes .* at most"),
        ([bytes(range(33, 126)).decode() * 9], 300, "ask for at least 3"),
    ],
)
def test_a_corpus_too_small_is_refused_in_numbers(
    texts: list[str], vocab_size: int, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        train_tokenizer(texts, vocab_size=vocab_size)


def test_what_is_no_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No tokenizer at .*gone\.model"):
        Tokenizer.load(str(tmp_path / "gone.model"))
    (tmp_path / "x.model").write_bytes(b"{} no model")
    with pytest.raises(DataError, match=r"x\.model is no sentencepiece model"):
        Tokenizer.load(str(tmp_path / "x.model"))


def test_a_model_without_begin_and_end_gets_the_next_free_ids() -> None:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[0].split("\n")),
        model_writer=out,
        vocab_size=40,
        hard_vocab_limit=False,
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
    model = Tokenizer(out.getvalue())
    size = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue()).get_piece_size()
    assert (model.bos, model.eod, model.vocab_size) == (size, size + 1, size + 2)
    ids = model.encode("the river")
    assert model.decode([model.bos, *ids, model.eod]) == "the river"


def test_bytes_need_no_training() -> None:
    model = Tokenizer(train_from_settings([], TokenizerSettings(model_type="byte")))
    assert (model.bos, model.eod, model.vocab_size) == (256, 257, 258)
    np.testing.assert_array_equal(model.encode("aé"), [97, 0xC3, 0xA9])
    assert model.encode("a").dtype == np.int32


def test_a_lone_surrogate_is_refused_at_its_place() -> None:
    with pytest.raises(DataError, match="lone surrogate at character 2"):
        Tokenizer(train_tokenizer([], vocab_size=0, model_type="byte")).encode("ab\ud800")


@pytest.mark.parametrize(
    "wrong", [{"vocab_size": 200}, {"sample_bytes": 0}, {"model_type": "word"}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=f"tokenizer.{next(iter(wrong))}"):
        TokenizerSettings(**wrong)  # type: ignore[arg-type]
