"""The shipped corpus is the one that was named, byte for byte."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from jobs.corpus import FILES, shipped_files

SHA256 = {
    "definitions.jsonl": "9f9a62ba65f6fb7026fad501f69cb7d6d7818c2ac4a3eb6c2db99fc7e45d71d8",
    "factbook.jsonl.gz": "e9f4f57c97d85082e33a6bcf237e6bf41dbcf6eb6ae454ec4eac8b631f765749",
    "plays.jsonl": "265d5fe1eeb45dbcd7959f0a657f132629279d961e472574f88cf57a43f06f7d",
}
DOCUMENTS = {"definitions.jsonl": 999, "factbook.jsonl.gz": 66, "plays.jsonl": 10}


@pytest.mark.parametrize("path", shipped_files(), ids=FILES)
def test_a_shipped_file_is_unchanged(path: str) -> None:
    data = Path(path).read_bytes()
    assert hashlib.sha256(data).hexdigest() == SHA256[Path(path).name]


@pytest.mark.parametrize("path", shipped_files(), ids=FILES)
def test_each_line_of_a_shipped_file_is_a_document(path: str) -> None:
    data = Path(path).read_bytes()
    lines = (gzip.decompress(data) if path.endswith(".gz") else data).decode().splitlines()
    documents = [json.loads(line) for line in lines]
    assert len(documents) == DOCUMENTS[Path(path).name]
    assert all(document["text"].strip() for document in documents)
    assert len({document["id"] for document in documents}) == len(documents)


def test_every_shipped_file_has_its_source_and_licence_named() -> None:
    here = Path(shipped_files()[0]).parent
    readme = (here / "README.md").read_text(encoding="utf-8")
    shipped = {path.name for path in here.iterdir() if ".jsonl" in path.name}
    assert shipped == set(FILES)
    assert all(f"`{name}`" in readme for name in shipped)
