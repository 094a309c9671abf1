"""Remote parts are fetched once, right by their hash, and never more of them than may be kept."""

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import cache as cache_module
from pipeline import steady
from pipeline.build import build_store
from pipeline.cache import PartCache
from pipeline.errors import DataError
from pipeline.layout import Layout
from pipeline.manifest import PartEntry
from pipeline.server import RowServer
from pipeline.settings import BuildSettings, SettingsError
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer
from tests.slow_files import SlowFiles, register
from tests.streams import assert_equal_batches, walk

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a dozen parts with documents, and some without."""
    home = tmp_path_factory.mktemp("cached")
    lines = [json.dumps({"text": f"{i} " * (i * 7 % 23 + 1)}) for i in range(60)]
    (home / "a.jsonl").write_text("\n".join(lines))
    (home / "byte").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    build_store(
        [str(home / "a.jsonl")],
        tokenizer=str(home / "byte"),
        out=str(home / "store"),
        settings=BuildSettings(task_bytes=200),
    )
    register()
    return home


@pytest.fixture
def parts(home: Path) -> Iterator[list[tuple[str, PartEntry]]]:
    """URL and entry of each part with documents."""
    SlowFiles.reset()
    entries = [e for e in Store.open(str(home / "store")).manifest.parts if e.documents]
    assert len(entries) > 10
    yield [(f"slow://{home}/store/{entry.name}", entry) for entry in entries]
    SlowFiles.reset()


def fetched(cache: PartCache, part: tuple[str, PartEntry]) -> Path:
    """Where a part lies in the cache, once it is there."""
    with cache.fetch(*part) as file:
        file.seek(0)
        assert hashlib.sha256(file.read()).hexdigest() == part[1].sha256
    return Path(cache._folder) / f"{part[1].sha256}.arrow"


def files_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_a_store_read_through_a_cache_is_the_store_and_each_part_is_fetched_once(
    home: Path, parts: list[tuple[str, PartEntry]], tmp_path: Path
) -> None:
    for _ in range(2):  # the second reader finds all of them
        remote = Store.open(f"slow://{home}/store", PartCache(str(tmp_path / "c"), 1_000_000))
        local = Store.open(str(home / "store"))
        for doc_id in range(local.documents):
            assert remote.text(doc_id) == local.text(doc_id)
    assert len(SlowFiles.opened) == len(set(SlowFiles.opened)) == len(parts)
    assert files_in(tmp_path / "c") == {
        f"{entry.sha256}.arrow": entry.size_bytes for _, entry in parts
    }


def test_two_that_want_the_same_part_at_the_same_time_fetch_it_once(
    parts: list[tuple[str, PartEntry]], tmp_path: Path
) -> None:
    SlowFiles.reset(delay_s=0.3)
    found: list[Path] = []

    def fetch() -> None:
        found.append(fetched(PartCache(str(tmp_path), 1_000_000), parts[0]))

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(SlowFiles.opened) == 1


def test_a_fetcher_that_hangs_holds_up_another_for_a_bounded_time(
    parts: list[tuple[str, PartEntry]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "LOCK_S", 0.3)
    over, hangs = threading.Event(), threading.Event()

    def hang(_: str) -> None:
        if not hangs.is_set():
            hangs.set()
            over.wait(30)

    SlowFiles.before_open = staticmethod(hang)
    first = threading.Thread(target=fetched, args=(PartCache(str(tmp_path), 1_000_000), parts[0]))
    first.start()
    assert hangs.wait(10)
    began = time.monotonic()
    path = fetched(PartCache(str(tmp_path), 1_000_000), parts[0])
    assert time.monotonic() - began < 10
    assert path.stat().st_size == parts[0][1].size_bytes
    assert first.is_alive()
    over.set()
    first.join()
    assert list(files_in(tmp_path)) == [path.name]


def test_a_damaged_file_in_the_cache_is_found_and_fetched_again(
    parts: list[tuple[str, PartEntry]], tmp_path: Path
) -> None:
    path = fetched(PartCache(str(tmp_path), 1_000_000), parts[0])
    whole = path.read_bytes()
    for damaged in (whole[:-1], bytes([whole[0] ^ 1]) + whole[1:]):
        path.write_bytes(damaged)
        told: list[str] = []
        again = fetched(PartCache(str(tmp_path), 1_000_000, warn=told.append), parts[0])
        assert again.read_bytes() == whole
        assert len(told) == 1
        assert "was damaged; it is fetched again" in told[0]
    assert len(SlowFiles.opened) == 3


def test_a_damaged_part_of_the_remote_store_is_refused_with_or_without_a_cache(
    home: Path, parts: list[tuple[str, PartEntry]], tmp_path: Path
) -> None:
    part = home / "store" / parts[0][1].name
    whole = part.read_bytes()
    try:
        part.write_bytes(bytes([*whole[:-20], whole[-20] ^ 1, *whole[-19:]]))
        pauses: list[float] = []
        cache = PartCache(str(tmp_path), 1_000_000, warn=lambda _: None, sleep=pauses.append)
        for kept in (cache, None):
            store = Store.open(f"slow://{home}/store", kept)
            with pytest.raises(DataError, match="as it came, holds") as caught:
                store.read(0)
            assert parts[0][0] in str(caught.value)
        assert pauses == [0.5, 1.0, 2.0]
        assert files_in(tmp_path) == {}
    finally:
        part.write_bytes(whole)


@pytest.mark.parametrize("failures", [steady.TRIES - 1, 1_000])
def test_a_store_that_fails_is_asked_again_for_so_long_and_no_longer(
    parts: list[tuple[str, PartEntry]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
) -> None:
    fails, pauses = iter([True] * failures), list[float]()
    monkeypatch.setattr(steady, "_wait", pauses.append)

    def fail(_: str) -> None:
        if next(fails, False):
            raise ConnectionResetError("reset by peer")

    SlowFiles.before_open = staticmethod(fail)
    cache = PartCache(str(tmp_path), 1_000_000, sleep=pauses.append)
    if failures < steady.TRIES:
        assert fetched(cache, parts[0]).exists()
    else:
        with pytest.raises(DataError, match="reset by peer"):
            cache.fetch(*parts[0])
    assert sum(pauses) == 7.5
    assert len(SlowFiles.opened) == steady.TRIES


def test_a_part_that_makes_room_for_another_before_it_is_mapped_is_mapped_all_the_same(
    home: Path,
    parts: list[tuple[str, PartEntry]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    largest = max(entry.size_bytes for _, entry in parts)
    local, other = Store.open(str(home / "store")), PartCache(str(tmp_path), largest)
    fetch = PartCache.fetch

    def between(cache: PartCache, url: str, part: PartEntry) -> Any:
        found = fetch(cache, url, part)
        if cache is not other:  # another process wants another part at this moment
            fetched(other, next(one for one in parts if one[1] != part))
            assert f"{part.sha256}.arrow" not in files_in(tmp_path)
        return found

    monkeypatch.setattr(PartCache, "fetch", between)
    for _ in range(2):  # fetched in this moment; and one that was there
        remote = Store.open(f"slow://{home}/store", PartCache(str(tmp_path), largest))
        for doc_id in range(0, local.documents, 7):
            assert (remote.read(doc_id) == local.read(doc_id)).all()
            monkeypatch.setattr(PartCache, "fetch", fetch)
            fetched(other, parts[(doc_id + 1) // 7 % len(parts)])
            monkeypatch.setattr(PartCache, "fetch", between)


def test_one_that_did_not_get_the_lock_leaves_it_to_who_has_it(
    parts: list[tuple[str, PartEntry]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "LOCK_S", 0.1)
    lock = tmp_path / f".longrow-lock-{parts[0][1].sha256}"
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fetched(PartCache(str(tmp_path), 1_000_000), parts[0])
        assert lock.exists()


def test_two_threads_that_open_the_same_part_count_it_once(
    home: Path, parts: list[tuple[str, PartEntry]]
) -> None:
    both = threading.Barrier(2)

    def meet(_: str) -> None:
        both.wait(10)  # both are opening it

    SlowFiles.before_open = staticmethod(meet)
    store = Store.open(f"slow://{home}/store")
    read: list[Any] = []
    threads = [threading.Thread(target=lambda: read.append(store.read(0))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (read[0] == read[1]).all()
    assert store._parts._bytes == parts[0][1].size_bytes


def test_what_was_opened_longest_ago_makes_room(
    parts: list[tuple[str, PartEntry]], tmp_path: Path
) -> None:
    limit = sum(entry.size_bytes for _, entry in parts) // 3
    cache = PartCache(str(tmp_path), limit)
    used: list[PartEntry] = []  # by last use, oldest first
    for number in [0, 1, 2, 0, 3, 4, 0, 5, 6, 7, 8, 0, 9, 1]:
        url, entry = parts[number]
        fetched(cache, (url, entry))
        used = [one for one in used if one != entry] + [entry]
        while sum(one.size_bytes for one in used) > limit:
            used.pop(0)
        assert set(files_in(tmp_path)) == {f"{one.sha256}.arrow" for one in used}
    assert 1 < len(used) < 9


def test_a_limit_that_a_part_does_not_fit_into_is_refused_at_the_door(
    home: Path, parts: list[tuple[str, PartEntry]], tmp_path: Path
) -> None:
    largest = max(entry.size_bytes for _, entry in parts)
    with pytest.raises(SettingsError, match=r"data\.cache_bytes = .* cannot hold a part of"):
        Store.open(f"slow://{home}/store", PartCache(str(tmp_path), largest - 1))
    Store.open(f"slow://{home}/store", PartCache(str(tmp_path), largest))
    Store.open(str(home / "store"), PartCache(str(tmp_path), 1))  # a local one needs no cache


def test_a_view_outlives_its_file(
    home: Path, parts: list[tuple[str, PartEntry]], tmp_path: Path
) -> None:
    largest = max(entry.size_bytes for _, entry in parts)
    remote = Store.open(f"slow://{home}/store", PartCache(str(tmp_path), largest))
    local = Store.open(str(home / "store"))
    views = [remote.read(doc_id) for doc_id in range(local.documents)]
    assert len(files_in(tmp_path)) == 1
    assert len(remote._open) == 1
    assert all((view == local.read(doc_id)).all() for doc_id, view in enumerate(views))


def test_a_killed_fetcher_leaves_nothing_that_stands_in_the_way(
    home: Path, parts: list[tuple[str, PartEntry]], tmp_path: Path
) -> None:
    code = (
        "import time\nfrom tests.slow_files import SlowFiles, register\nregister()\n"
        "from pipeline import cache\nfrom pipeline.store import Store\n"
        "class Slow:\n"
        "    def __init__(self, made): self.made = made\n"
        "    def update(self, data): print('half', flush=True); time.sleep(60)\n"
        f"store = Store.open('slow://{home}/store', cache.PartCache({str(tmp_path)!r}, 10**6))\n"
        "cache.hashlib.sha256 = lambda: Slow(None)\nstore.read(0)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    halves = [name for name in files_in(tmp_path) if name.startswith(".longrow-")]
    assert len(halves) == 2  # its half, and its lock
    cache = PartCache(str(tmp_path), 1_000_000)
    began = time.monotonic()
    fetched(cache, parts[0])
    assert time.monotonic() - began < cache_module.LOCK_S  # the lock went with its holder
    long_ago = time.time() - 2 * cache_module.STALE_S
    for name in files_in(tmp_path):
        if name.startswith(".longrow-"):
            os.utime(tmp_path / name, (long_ago, long_ago))
    fetched(cache, parts[1])
    assert set(files_in(tmp_path)) == {f"{entry.sha256}.arrow" for _, entry in parts[:2]}


def test_rows_of_a_slow_remote_store_are_the_rows_and_come_step_by_step(
    home: Path, parts: list[tuple[str, PartEntry]], tmp_path: Path
) -> None:
    assert parts
    layout = Layout(rows=4, segment=30, seed=5)
    local = RowServer(Store.open(str(home / "store")), layout)
    remote = Store.open(f"slow://{home}/store", PartCache(str(tmp_path), 3_000_000))
    now = [0.0]
    SlowFiles.before_open = staticmethod(lambda _: now.__setitem__(0, now[0] + 0.4))
    server = RowServer(remote, layout, clock=lambda: now[0])
    state, steps = server.initial_state(), []
    stream = walk(local, local.initial_state(), 1_000)
    while state.step < 100:
        began = now[0]
        block = server.read(state, 16, (0, 4))
        # the one that goes past the patience, and what a last step may open
        assert now[0] - began <= 1.0 + 0.4 * 4 * 3
        steps.append(block.steps)
        for index in range(block.steps):
            assert_equal_batches(block.batch(index), next(stream)[0])
        state = block.after
    assert steps[0] < 16  # while all is slow
    assert steps[-1] == 16  # when all is here
