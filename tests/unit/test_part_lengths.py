"""Lengths and splits of a part: as its columns say, for few bytes however far it is."""

from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline import part as part_file
from pipeline.errors import DataError
from pipeline.files import join
from pipeline.manifest import PartEntry
from pipeline.part import Encoded, Part, PartHead, writing_part
from pipeline.part_lengths import read_lengths

HEAD = PartHead(key="k" * 32, tokenizer="t", vocab_size=300, eod=299, dtype="uint16")
LENGTHS = [0, 7, 20_000, 1, 333, 5_000, 90_000, 12]


class Counted(MemoryFileSystem):
    """A file system that counts the bytes it hands out."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]
    given: ClassVar[list[int]] = []

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        data = super().cat_file(path, start, end, **options)
        self.given.append(len(data))
        return data

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if "r" in mode:
            self.given.append(self.size(path) or 0)  # who opens a file may read all of it
        return super()._open(path, mode, **options)


def written(url: str, *, lengths: list[int], batch_tokens: int) -> PartEntry:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_file, "BATCH_TOKENS", batch_tokens)
        with writing_part(url, HEAD, ["a.jsonl"]) as part:
            part.add(
                [
                    Encoded(
                        f"d{i}", "a.jsonl", i, i % 3 == 0, 1, 1, 1, np.full(length, 7, np.int32)
                    )
                    for i, length in enumerate(lengths)
                ]
            )
            size, digest = part.close()
    return PartEntry(
        key=HEAD.key,
        documents=len(lengths),
        tokens=sum(lengths),
        bytes=len(lengths),
        size_bytes=size,
        sha256=digest,
        record_sha256="",
    )


@pytest.mark.parametrize("batch_tokens", [1, 6_000, 1 << 20])
@pytest.mark.parametrize("lengths", [[], LENGTHS], ids=["empty", "some"])
def test_they_are_those_of_the_columns(
    tmp_path: Path, lengths: list[int], batch_tokens: int
) -> None:
    url = str(tmp_path / "a.arrow")
    entry = written(url, lengths=lengths, batch_tokens=batch_tokens)
    found, part = read_lengths(url, entry), Part(url)
    assert found.num_tokens.tolist() == part.num_tokens().tolist() == lengths
    assert found.split.tolist() == part.numbers("split").tolist()


def test_of_a_remote_part_few_bytes_are_fetched() -> None:
    fsspec.register_implementation("counted", Counted, clobber=True)
    url = "counted://store/a.arrow"
    entry = written(url, lengths=LENGTHS, batch_tokens=6_000)
    Counted.given.clear()
    assert read_lengths(url, entry).num_tokens.tolist() == LENGTHS
    assert 0 < sum(Counted.given) < entry.size_bytes // 20


@pytest.mark.parametrize("harm", ["missing", "other", "short", "no footer"])
def test_a_part_that_is_another_is_refused_by_name(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "a.arrow"
    entry = written(str(path), lengths=LENGTHS, batch_tokens=1 << 20)
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "other":
        entry = written(str(path), lengths=LENGTHS[1:], batch_tokens=1 << 20)
        entry = PartEntry(**{**{n: getattr(entry, n) for n in entry.__slots__}, "documents": 9})
    elif harm == "short":
        path.write_bytes(data[:-50])
    else:
        path.write_bytes(data[:-10] + b"\xff" * 10)
    with pytest.raises(DataError, match=r"a\.arrow .*Remove it|remove it"):
        read_lengths(join(str(tmp_path), "a.arrow"), entry)
