"""A store that goes away under who reads it: the same batches, or a sentence; never others."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.build import build_store
from pipeline.cache import PartCache
from pipeline.client import RowClient
from pipeline.errors import DataError
from pipeline.files import join, read_bytes, remove, write_whole
from pipeline.layout import Layout
from pipeline.part_lengths import read_lengths
from pipeline.server import RowServer
from pipeline.settings import BuildSettings
from pipeline.store import Store

LAYOUT = Layout(rows=3, segment=40, shuffle="none")
STEPS = 60  # of these the last part is read late
SENTENCE = r"/parts/[0-9a-f]{32}\.arrow is missing; the manifest names it\. Put the store back .*"


def built(folder: Path) -> str:
    lines = [json.dumps({"text": f"text {i} " * (i % 9 + 1)}) for i in range(90)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    (folder / "t").write_text('{"format": "longrow-bytes", "version": 1}')
    out = str(folder / "store")
    settings = BuildSettings(task_bytes=700)
    build_store([str(folder / "a.jsonl")], tokenizer=str(folder / "t"), out=out, settings=settings)
    return out


def local(out: str, _folder: Path) -> tuple[Store, str]:
    return Store.open(out), out


def remote(out: str, folder: Path, cache: PartCache | None = None) -> tuple[Store, str]:
    url = f"memory://removed{folder}"
    for path in Path(out).rglob("*"):
        if path.is_file():
            write_whole(join(url, path.relative_to(out).as_posix()), path.read_bytes())
    return Store.open(url, cache), url


def cached(out: str, folder: Path) -> tuple[Store, str]:
    return remote(out, folder, PartCache(str(folder / "cache"), 10**9, sleep=lambda _: None))


def client(store: Store) -> RowClient:
    server = RowServer(store, LAYOUT)
    return RowClient(
        server, state=server.initial_state(), rows=(0, 3), warn=lambda _: None, block=1
    )


@pytest.mark.parametrize("place", [local, remote, cached])
@pytest.mark.parametrize("after", [0, 1, 9])
@pytest.mark.parametrize("what", ["all", "one part"])
def test_what_was_read_goes_on_and_what_is_missing_is_named(
    tmp_path: Path, place: Callable[..., tuple[Store, str]], after: int, what: str
) -> None:
    out = built(tmp_path)
    whole = client(Store.open(out))
    wanted = [whole.next()[0] for _ in range(STEPS)]
    store, url = place(out, tmp_path)
    assert len(store.manifest.parts) > 5
    reader = client(store)
    seen = [reader.next()[0] for _ in range(after)]
    if what == "one part":
        remove(join(url, store.manifest.parts[-1].name))
    elif url == out:
        shutil.rmtree(out)
    else:
        for part in store.manifest.parts:
            remove(join(url, part.name))

    def read_on() -> None:
        seen.extend(reader.next()[0] for _ in range(STEPS - after))

    with pytest.raises(DataError, match=SENTENCE):
        read_on()
    for step, batch in enumerate(seen):
        assert np.array_equal(batch.tokens, wanted[step].tokens)
        assert np.array_equal(batch.doc_id, wanted[step].doc_id)


def test_verify_and_the_lengths_of_a_part_say_it_too(tmp_path: Path) -> None:
    out = built(tmp_path)
    store = Store.open(out)
    part = store.manifest.parts[1]
    data = read_bytes(join(out, part.name))
    remove(join(out, part.name))
    (fault,) = store.verify()
    assert f"{part.name} is missing" in fault
    with pytest.raises(DataError, match="there is no file"):
        read_lengths(join(out, part.name), part)
    write_whole(join(out, part.name), data)
    assert store.verify() == []
