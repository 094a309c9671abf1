"""Real documents in seven forms at once: each of them once, and its text byte for byte."""

import gzip
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.build import build_store
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer

ROOT = Path(__file__).parents[2]
HERE = Path(os.environ.get("LONGROW_CORPORA", ROOT.parent / "shared" / "corpora"))


def wanted() -> list[tuple[str, str]]:
    """(source, text) of every document, read by other means than ours."""
    found: list[tuple[str, str]] = []
    for name in ("plays.jsonl", "definitions.jsonl", "factbook.jsonl.gz", "inaugural.jsonl.zst"):
        data = (HERE / name).read_bytes()
        data = gzip.decompress(data) if name.endswith("gz") else data
        if name.endswith("zst"):
            data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        found += [(name, json.loads(line)["text"]) for line in data.decode().split("\n") if line]
    parquet = "state_union.parquet"
    found += [(parquet, t) for t in pq.read_table(HERE / parquet).column("text").to_pylist()]
    stories = sorted((HERE / "stories").glob("*.txt"))
    found += [(f"stories/{path.name}", path.read_bytes().decode()) for path in stories]
    articles: list[str] = []
    before = ""
    for line in (HERE / "wiki.valid.tokens").read_bytes().decode().splitlines(keepends=True):
        title = line.startswith(" = ") and line.endswith(" = \n") and not line.startswith(" = = ")
        if title and not before.strip():
            articles.append("")
        elif not articles:
            continue  # the blank line at the top
        articles[-1] += line
        before = line
    return found + [("wiki.valid.tokens", article) for article in articles]


@pytest.mark.skipif(not HERE.is_dir(), reason=f"no corpora at {HERE}; LONGROW_CORPORA names them")
@pytest.mark.parametrize("task_bytes", [32 << 20, 100_000])
def test_seven_forms_at_once_give_every_document_byte_for_byte(
    tmp_path: Path, task_bytes: int
) -> None:
    (tmp_path / "byte").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    report = build_store(
        [str(HERE)],
        tokenizer=str(tmp_path / "byte"),
        out=str(tmp_path / "store"),
        settings=BuildSettings(task_bytes=task_bytes),
    )
    assert (report.documents, report.rejected, report.empty) == (1_242, {}, 0)
    assert set(report.ignored) == {"MANIFEST.json", "README.md"}
    store = Store.open(str(tmp_path / "store"))
    built = [(store.origin(i)[0], store.text(i)) for i in range(1_242)]
    assert sorted(built) == sorted(wanted())
