"""Nothing of a text is lost, whatever it holds: in the tokenizer, and from a file to the store."""

import json
import tempfile
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import records
from pipeline.build import build_store
from pipeline.corpus import Document, plan_tasks
from pipeline.encode import count_words
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import Tokenizer, train_tokenizer

ODD = [
    "\u2581", "\u2581\u2581 ", "\n", "\r\n", "\r", "\t", "  ", "\u2028", "\u0085", "\x00", "\ufeff",
    "\ufffd", "\u2585", "</s>", "<s>", "<unk>", "<0xE2>", "e\u0301", "\u200d", "\U0001f469",
    "\U0010ffff", "\ufffe", "the ", "river", "42", "\u5b57", "\u0627", "\u00a0", "\uff21", "\u2026",
]  # fmt: skip
letters = st.characters(exclude_categories=["Cs"])
texts = st.lists(st.sampled_from(ODD) | st.text(letters, max_size=8), max_size=12).map("".join)


@cache
def tokenizer(kind: str) -> Tokenizer:
    draw = np.random.default_rng(1)
    words = ["river", "stone", "walking", "the", "of", "light", "\u2581", "remember", "\n", "42"]
    prose = [" ".join(draw.choice(words, 2_000)) for _ in range(3)]
    return Tokenizer(train_tokenizer(prose, vocab_size=285, model_type=kind))


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "byte"])
@given(text=texts)
def test_decoding_gives_the_text_that_was_encoded(kind: str, text: str) -> None:
    model = tokenizer(kind)
    ids = model.encode(text)
    assert model.decode(ids) == text
    assert model.decode([model.bos, *ids, model.eod]) == text
    assert ids.min(initial=0) >= 0
    assert ids.max(initial=0) < model.vocab_size
    assert not {model.bos, model.eod} & set(ids.tolist())  # a typed "</s>" ends nothing


@given(data=st.binary(max_size=60) | texts.map(str.encode))
def test_words_are_runs_without_ascii_blanks(data: bytes) -> None:
    assert count_words([data, b"", data]) == [len(data.split()), 0, len(data.split())]


records_of_a_file = st.lists(
    st.one_of(
        texts.map(lambda text: json.dumps({"text": text}, ensure_ascii=False).encode()),
        st.sampled_from(
            [b"", b" \r", b"{broken", b'{"text": "\xff"}', b'{"text":\r"cr"}', b'{"text": "end"}\r']
        ),
    ),
    max_size=12,
)


@given(
    lines=records_of_a_file,
    ended=st.booleans(),
    task_bytes=st.integers(1, 60),
    chunk=st.integers(1, 40),
    limit=st.integers(0, 200),
)
def test_a_file_cut_anywhere_gives_the_records_of_the_whole(
    lines: list[bytes], ended: bool, task_bytes: int, chunk: int, limit: int
) -> None:
    data = b"\n".join(lines) + b"\n" * ended
    with tempfile.TemporaryDirectory() as folder, patch.object(records, "CHUNK", chunk):
        path = Path(folder, "a.jsonl")
        path.write_bytes(data)
        whole, cut = (
            [
                item
                for task in plan_tasks([str(path)], task_bytes=size).tasks
                for item in records.read_task(task, held=records.hold(task, limit=limit))
            ]
            for size in (1 << 20, task_bytes)
        )
    assert cut == whole
    good = [line for line in lines if line.startswith(b'{"text') and b"\xff" not in line]
    read = [item.text for item in whole if isinstance(item, Document)]
    assert read == [json.loads(line)["text"] for line in good]
    assert all(data[i.record :].startswith(b"{") for i in whole if i.record)


@given(
    corpus=st.lists(texts, max_size=8).map(lambda found: [*found, "one at least", *found[:3]]),
    task_bytes=st.integers(80, 800),
    batch=st.integers(1, 30),
    held_out=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_a_store_gives_back_every_text_once_and_in_order(
    corpus: list[str], task_bytes: int, batch: int, held_out: float
) -> None:
    model = tokenizer("unigram")
    kept = [text for text in corpus if text]
    settings = BuildSettings(held_out=held_out, task_bytes=task_bytes)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("pipeline.part.BATCH_TOKENS", batch),
        patch("os.fsync"),  # no power cut here, and it is most of the time
    ):
        file, path, out = (str(Path(folder, name)) for name in ("tok", "a.jsonl", "store"))
        Path(file).write_bytes(model.model_bytes)
        Path(path).write_text("".join(json.dumps({"text": text}) + "\n" for text in corpus))
        report = build_store([path], tokenizer=file, out=out, settings=settings)
        store = Store.open(out)
        assert [store.text(i) for i in range(report.documents)] == kept
        assert store.verify() == []
        lengths = np.zeros(len(kept), np.int64)
        for split in ("train", "validation"):
            lengths[store.doc_ids(split)] += store.num_tokens(split)
        assert [len(store.read(i)) - 1 for i in range(len(kept))] == lengths.tolist()
        assert all(store.read(i)[-1] == store.eod for i in range(len(kept)))
        sizes = [[len(t.encode()), len(t), len(t.encode().split())] for t in kept]
        assert np.transpose(store.sizes(range(len(kept)))).tolist() == sizes
        held = {kept[i] for i in store.doc_ids("validation")}
        assert not held & {kept[i] for i in store.doc_ids("train")}  # equal texts stay together
        assert held_out > 0 or not held
    assert (report.empty, report.tokens) == (len(corpus) - len(kept), lengths.sum())


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "byte"])
@given(batch=st.lists(texts, max_size=6))
def test_texts_encoded_together_have_the_ids_of_each_alone(kind: str, batch: list[str]) -> None:
    model = tokenizer(kind)
    found = model.encode_all([text.encode() for text in batch])
    assert [ids.tolist() for ids in found] == [model.encode(text).tolist() for text in batch]
