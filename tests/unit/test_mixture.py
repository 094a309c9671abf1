"""Several stores are read as one: numbered through, each with its share of the tokens."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from jobs.config import read_config
from pipeline.build import build_store
from pipeline.errors import DataError
from pipeline.layout import Layout
from pipeline.lengths import Mixed
from pipeline.mixture import Mixture, Weighted, name_of, whole_weights
from pipeline.rows import advance
from pipeline.server import RowServer, validation_batches
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer
from tests.command import code_of
from trainer.errors import ConfigError


def built(
    folder: Path,
    name: str,
    texts: list[str],
    *,
    vocab_size: int = 258,
    held_out: float = 0.3,
    task_bytes: int = BuildSettings().task_bytes,
    dedup: Literal["off", "exact"] = "off",
) -> Path:
    corpus, model = folder / f"{name}.jsonl", folder / f"{vocab_size}.model"
    corpus.write_text("\n".join(json.dumps({"id": name, "text": text}) for text in texts))
    if not model.exists():
        kind = "byte" if vocab_size == 258 else "char"
        model.write_bytes(train_tokenizer(texts, vocab_size=vocab_size, model_type=kind))
    build_store(
        [str(corpus)],
        tokenizer=str(model),
        out=str(folder / name),
        settings=BuildSettings(
            held_out=held_out, max_bad="100%", task_bytes=task_bytes, dedup=dedup
        ),
    )
    return folder / name


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("mixture")
    books = [f"book {number} " + "long " * (20 + number) for number in range(20)]
    return [built(folder, "books", books), built(folder, "web", [f"page {i}" for i in range(40)])]


def mixture_of(stores: list[Path], *weights: float) -> Mixture:
    weighted = [
        Weighted(store=str(store), weight=weight)
        for store, weight in zip(stores, weights, strict=True)
    ]
    opened = Store.open(name_of(weighted))
    assert isinstance(opened, Mixture)
    return opened


def test_documents_are_numbered_through(stores: list[Path]) -> None:
    mixture, parts = mixture_of(stores, 3, 1), [Store.open(str(store)) for store in stores]
    first = parts[0].manifest.documents
    for doc_id in range(mixture.manifest.documents):
        store, row = (parts[0], doc_id) if doc_id < first else (parts[1], doc_id - first)
        assert mixture.text(doc_id) == store.text(row)
        assert mixture.uid(doc_id) == store.uid(row)
        assert mixture.origin(doc_id) == store.origin(row)
        np.testing.assert_array_equal(mixture.read(doc_id), store.read(row))
    ids = np.arange(mixture.manifest.documents)[::-1]
    told = [len(mixture.text(doc_id).encode()) for doc_id in ids]
    assert mixture.sizes(ids)[0].tolist() == told
    for wrong in (-1, mixture.manifest.documents):
        with pytest.raises(IndexError, match=f"asked for {wrong}"):
            mixture.read(wrong)


def test_the_held_out_documents_are_those_of_all_stores_once(stores: list[Path]) -> None:
    mixture = mixture_of(stores, 3, 1)
    seen: list[int] = []
    for batch in validation_batches(mixture, rows=3, segment=8):
        seen += batch.doc_id[(batch.offset == 0) & (batch.doc_id >= 0)].tolist()
    wanted = mixture.doc_ids("validation").tolist()
    assert sorted(seen) == wanted
    assert len(wanted) == sum(len(Store.open(str(one)).doc_ids("validation")) for one in stores)


def test_each_store_has_its_share_of_the_tokens(stores: list[Path]) -> None:
    server = RowServer(mixture_of(stores, 0.75, 0.25), Layout(rows=4, segment=32))
    assert isinstance(server.lengths, Mixed)
    assert server.lengths.weights == (3, 1)
    books, web = advance(server.lengths, server.layout, server.initial_state(), 500).sources
    assert abs(books.tokens_dealt - 3 * web.tokens_dealt) < 4 * 250
    assert web.epoch > books.epoch > 5


def test_a_mixture_of_one_store_reads_as_the_store(stores: list[Path]) -> None:
    layout = Layout(rows=4, segment=16, seed=5)
    alone, mixed = RowServer(Store.open(str(stores[0])), layout), mixture_of(stores[:1], 7)
    state = advance(alone.lengths, layout, alone.initial_state(), 30)
    assert RowServer(mixed, layout).digest_of_next(state) == alone.digest_of_next(state)


def test_the_fingerprint_is_of_the_stores_their_order_and_their_shares(stores: list[Path]) -> None:
    def of(stores: list[Path], *weights: float) -> str:
        return mixture_of(stores, *weights).fingerprint

    assert of(stores, 3, 1) == of(stores, 0.75, 0.25) == of(stores, 0.3, 0.1)
    others = [of(stores, 1, 3), of(stores[::-1], 3, 1), of(stores[:1], 1)]
    assert len({of(stores, 3, 1), *others}) == 4


def test_weights_are_exact() -> None:
    assert whole_weights(["0.7", "0.2", "0.1"]) == (7, 2, 1)
    assert whole_weights(["1e-06", "2", "1e+06"]) == (1, 2_000_000, 10**12)


def test_stores_of_two_tokenizers_are_refused_with_both_named(
    stores: list[Path], tmp_path: Path
) -> None:
    other = built(tmp_path, "other", ["other words"] * 9, vocab_size=300)
    with pytest.raises(DataError, match=rf"{stores[0]} is of .* with 258 ids, {other} of "):
        mixture_of([stores[0], other], 1, 1)


def test_a_store_named_twice_is_refused(stores: list[Path]) -> None:
    with pytest.raises(DataError, match="holds the same documents as"):
        mixture_of([stores[0], stores[0]], 1, 1)


def test_stores_of_two_held_out_parts_are_refused_with_both_named(tmp_path: Path) -> None:
    texts = [f"page {number}" for number in range(60)]
    few = built(tmp_path, "few", texts, held_out=0.05)
    many = built(tmp_path, "many", texts, held_out=0.5)
    with pytest.raises(
        DataError, match=rf"{few} was built with --held-out 0.05, {many} with --held-out 0.5:"
    ):
        mixture_of([few, many], 1, 1)


@pytest.mark.parametrize("change", [{"task_bytes": 64}, {"dedup": "exact"}])
def test_one_corpus_built_in_another_way_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    texts = [f"page {number % 35}" for number in range(40)]
    ours, theirs = built(tmp_path, "ours", texts), built(tmp_path, "theirs", texts, **change)
    assert Store.open(str(ours)).fingerprint != Store.open(str(theirs)).fingerprint
    with pytest.raises(DataError, match=rf"{theirs} holds the same documents as {ours}"):
        mixture_of([ours, theirs], 1, 1)


def test_stores_of_equal_counts_and_other_texts_are_mixed(tmp_path: Path) -> None:
    ours, theirs = (
        built(tmp_path, name, [f"{name} {number}" for number in range(9)]) for name in ("a", "b")
    )
    manifests = [Store.open(str(store)).manifest for store in (ours, theirs)]
    counts = [(one.documents, one.tokens, one.bytes) for one in manifests]
    assert counts[0] == counts[1]
    assert mixture_of([ours, theirs], 1, 1).documents == 18


def test_a_store_too_small_for_its_share_of_the_rows_is_refused(stores: list[Path]) -> None:
    server = RowServer(mixture_of(stores, 15, 1), Layout(rows=32, segment=8))
    with pytest.raises(DataError, match=r"Store 0 of the mixture holds .* about 30 of the 32 rows"):
        advance(server.lengths, server.layout, server.initial_state(), 1)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('mixture = [{store = "a", weight = 0}]', r"data.mixture\[0\] .*weight = 0"),
        ('mixture = [{store = "", weight = 1}]', "store must be the folder or URL of one store"),
        ('mixture = [{store = "a", wieght = 1}]', "wieght"),
        ('mixture = [{store = "a"}]', "weight"),
        ('store = "b"\nmixture = [{store = "a", weight = 1}]', "data.store is set too"),
        ('mixture = [{store = "s3://me:secret@h/a", weight = 1}]', "credential|password|secret"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(tmp_path: Path, toml: str, says: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"[data]\n{toml}\n")
    with pytest.raises(ConfigError, match=says):
        read_config(path)


def test_a_mixture_is_a_table_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    tables = ['store = "/a"\nweight = 3\n', 'store = "s3://b"\nweight = 1.5\n']
    path.write_text("".join(f"[[data.mixture]]\n{table}" for table in tables))
    config = read_config(path)
    assert config.data.reads == 'mixture:[["/a", "3.0"], ["s3://b", "1.5"]]'
    again = tmp_path / "again.toml"
    again.write_text(config.to_toml())
    assert read_config(again) == config


def test_a_name_that_is_no_mixture_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("verify", "mixture:nonsense") == 3
    assert "names no mixture" in capsys.readouterr().err
