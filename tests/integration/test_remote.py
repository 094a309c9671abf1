"""Corpora and stores behind URLs: a web server and an S3 server of this machine, for real."""

import functools
import gzip
import http.server
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline import steady
from pipeline.build import build_store, prepare, seal
from pipeline.cache import PartCache
from pipeline.client import RowClient
from pipeline.errors import DataError
from pipeline.finish import BuildReport
from pipeline.layout import Layout
from pipeline.progress import BuildProgress
from pipeline.server import RowServer
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer
from tests.streams import assert_equal_batches, walk

TEXTS = [f"text {i} \u2028\r\n" * (i % 9 + 1) for i in range(120)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A corpus of a long file and a packed one, a tokenizer, and the store of both."""
    (tmp_path / "byte").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    (tmp_path / "in/deep").mkdir(parents=True)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (tmp_path / "in/a b.jsonl").write_text(lines)
    (tmp_path / "in/deep/c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    build(tmp_path, [str(tmp_path / "in")], str(tmp_path / "local"))
    return tmp_path


def build(
    home: Path,
    inputs: list[str],
    out: str,
    tokenizer: str = "",
    progress: Callable[[BuildProgress], None] = lambda _: None,
) -> BuildReport:
    return build_store(
        inputs,
        tokenizer=tokenizer or str(home / "byte"),
        out=out,
        settings=BuildSettings(task_bytes=4_000),
        progress=progress,
    )


def texts(store: str) -> list[str]:
    opened = Store.open(store)
    return [opened.text(i) for i in range(opened.manifest.documents)]


class Plain(http.server.SimpleHTTPRequestHandler):
    """A web server that knows no ranges."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


class Ranges(Plain):
    """A web server that does."""

    def do_GET(self) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not wanted:
            super().do_GET()
            return
        data = Path(self.translate_path(self.path)).read_bytes()
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(data[first : last + 1])

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()


@pytest.fixture(params=[Plain, Ranges])
def web(request: pytest.FixtureRequest, home: Path) -> Iterator[str]:
    """The folder `home` as a web server shows it; the address."""
    handler = functools.partial(request.param, directory=str(home))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_corpus_is_read_from_the_web(home: Path, web: str) -> None:
    pytest.importorskip("aiohttp", reason="http:// needs aiohttp")
    addresses = [f"{web}/in/a%20b.jsonl", f"{web}/in/deep/c.jsonl.gz"]
    report = build(home, addresses, str(home / "store"), tokenizer=f"{web}/byte")
    assert report.parts > 3  # the long file was cut
    assert report.rejected == {}
    assert texts(str(home / "store")) == texts(str(home / "local"))
    with pytest.raises(DataError, match="nowhere"):
        build(home, [f"{web}/in/nowhere.jsonl"], str(home / "other"))


class Flaky(Ranges):
    """A web server that is down now and then, and breaks off in the middle of an answer."""

    down = 0  # answers of 503 still to give
    breaks = 0  # answers still to break off
    asked = 0

    def do_HEAD(self) -> None:
        if not self._is_down():
            super().do_HEAD()

    def do_GET(self) -> None:
        if self._is_down():
            return
        if type(self).breaks:
            type(self).breaks -= 1
            data = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        super().do_GET()

    def _is_down(self) -> bool:
        type(self).asked += 1
        if type(self).down:
            type(self).down -= 1
            self.send_error(503)
            return True
        return False


@pytest.fixture
def flaky(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The folder `home` as `Flaky` shows it, nobody waiting between two tries; the address."""
    pytest.importorskip("aiohttp", reason="http:// needs aiohttp")
    monkeypatch.setattr(steady, "_wait", lambda _: None)
    monkeypatch.setattr(Flaky, "down", 0)
    monkeypatch.setattr(Flaky, "breaks", 0)
    monkeypatch.setattr(Flaky, "asked", 0)
    handler = functools.partial(Flaky, directory=str(home))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of fsspec: what
# it leaves of an answer that broke off is closed by the collector
@pytest.mark.parametrize("fails", ["down", "breaks"])
def test_a_web_server_that_fails_for_a_while_costs_time_and_nothing_else(
    home: Path, flaky: str, fails: str
) -> None:
    (home / "list").write_text(f"{flaky}/in/a%20b.jsonl\n{flaky}/in/deep/c.jsonl.gz\n")
    setattr(Flaky, fails, 4)
    report = build(home, [f"@{home / 'list'}"], str(home / "store"))
    assert getattr(Flaky, fails) == 0  # it did fail
    assert report.rejected == {}
    assert texts(str(home / "store")) == texts(str(home / "local"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of fsspec: what
# it leaves of an answer that broke off is closed by the collector
@pytest.mark.parametrize("fails", ["down", "breaks"])
def test_a_web_server_that_fails_for_good_is_named_and_what_was_built_stays(
    home: Path, flaky: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(steady, "_wait", waits.append)
    inputs = [f"{flaky}/in/a%20b.jsonl", f"{flaky}/in/deep/c.jsonl.gz"]
    done: list[int] = []

    def fail(progress: BuildProgress) -> None:
        done.append(progress.tasks_done)
        if progress.tasks_done == 2:
            setattr(Flaky, fails, 1 << 30)

    says = {
        "down": "does not answer: 5 tries failed",
        "breaks": r"broke off at byte [\d,]+: 5 tries",
    }
    with pytest.raises(DataError, match=says[fails]):
        build(home, inputs, str(home / "store"), progress=fail)
    assert waits[-4:] == [0.5, 1.0, 2.0, 4.0]
    assert max(done) == len(list((home / "store/parts").glob("*.json"))) == 2
    assert not (home / "store/manifest.json").exists()
    setattr(Flaky, fails, 0)
    build(home, inputs, str(home / "store"))
    assert texts(str(home / "store")) == texts(str(home / "local"))


def test_what_a_server_never_had_is_said_at_once(home: Path, flaky: str) -> None:
    with pytest.raises(DataError, match="nowhere"):
        build(home, [f"{flaky}/in/nowhere.jsonl"], str(home / "other"))
    assert Flaky.asked <= 6  # nothing was tried again


@pytest.mark.filterwarnings("ignore")  # of boto and moto, which are not ours
def test_a_corpus_and_its_store_live_on_s3(home: Path, bucket: str) -> None:
    import fsspec

    remote = fsspec.filesystem("s3")
    remote.put(str(home / "in"), f"{bucket}/", recursive=True)
    remote.put(str(home / "byte"), f"{bucket}/byte")
    report = build(home, [f"{bucket}/in"], f"{bucket}/store", tokenizer=f"{bucket}/byte")
    assert texts(f"{bucket}/store") == texts(str(home / "local"))
    assert Store.open(f"{bucket}/store").verify() == []
    assert build(home, [f"{bucket}/in"], f"{bucket}/store") == report  # nothing is built again
    for name in ("manifest.json", "index.arrow"):
        assert remote.cat(f"{bucket}/store/{name}") == (home / "local" / name).read_bytes()
    globbed = build(home, [f"{bucket}/in/**/*.gz"], f"{bucket}/other")
    assert globbed.documents == len(TEXTS)
    part = Store.open(f"{bucket}/store").manifest.parts[0]
    remote.pipe(f"{bucket}/store/{part.name}", b"short")
    with pytest.raises(DataError, match=r"holds 5 bytes"):
        Store.open(f"{bucket}/store")


BUILD_ELSEWHERE = """
import pickle, sys
from pipeline.build import prepare
from pipeline.builder import Builder
from pipeline.settings import BuildSettings

corpus, tokenizer, out = sys.argv[1:]
settings = BuildSettings(task_bytes=4_000)
job = prepare([corpus], tokenizer=tokenizer, out=out, settings=settings)
builder = Builder(tokenizer=job.tokenizer, out=out, settings=settings)
sys.stdout.buffer.write(pickle.dumps([builder.build(task) for task in job.plan.tasks]))
"""


@pytest.mark.filterwarnings("ignore")  # of boto and moto, which are not ours
def test_parts_that_another_process_wrote_on_s3_are_seen_by_who_listed_the_folder_before(
    home: Path, bucket: str
) -> None:
    for text in ("more", "and more"):  # the second time there are parts to list
        with (home / "in/a b.jsonl").open("a") as corpus:
            corpus.write(json.dumps({"text": text}) + "\n")
        told = {"tokenizer": str(home / "byte"), "out": f"{bucket}/store"}
        job = prepare([str(home / "in")], **told, settings=BuildSettings(task_bytes=4_000))
        done = subprocess.run(
            [sys.executable, "-c", BUILD_ELSEWHERE, str(home / "in"), *told.values()],
            check=True,
            timeout=120,
            stdout=subprocess.PIPE,
        )
        seal(job, pickle.loads(done.stdout))
        build(home, [str(home / "in")], str(home / "again"))
        assert texts(f"{bucket}/store") == texts(str(home / "again"))


class Delay:
    """A way to a server on which every question takes its time; counts the parts asked for."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._there, self._delay_s = ("127.0.0.1", port), delay_s
        self.parts: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._there)
                for one, other, asks in ((near, far, True), (far, near, False)):
                    threading.Thread(
                        target=self._pump, args=(one, other), kwargs={"asks": asks}, daemon=True
                    ).start()

    def _pump(self, one: socket.socket, other: socket.socket, *, asks: bool) -> None:
        with suppress(OSError), one, other:
            while data := one.recv(1 << 16):
                if asks:
                    self.parts += re.findall(r"GET \S*parts/(\w+)\.arrow", data.decode("latin-1"))
                    time.sleep(self._delay_s)
                other.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.filterwarnings("ignore")  # of boto and moto, which are not ours
def test_rows_of_a_slow_s3_store_are_those_of_the_local_one_and_each_part_comes_once(
    home: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    fsspec.filesystem("s3").put(str(home / "local"), f"{bucket}/slow", recursive=True)
    port = int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])
    delay = Delay(port, delay_s=0.1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{delay.port}")
    fsspec.filesystem("s3").clear_instance_cache()
    monkeypatch.setattr("pipeline.client.SLOW_S", 0.3)
    layout = Layout(rows=8, segment=40, seed=3)
    local = RowServer(Store.open(str(home / "local")), layout)
    stream = walk(local, local.initial_state(), 150)
    cache = PartCache(str(tmp_path / "cache"), 10_000_000)
    server = RowServer(Store.open(f"{bucket}/slow", cache), layout)
    told: list[str] = []
    client = RowClient(server, state=server.initial_state(), rows=(0, 8), warn=told.append)
    longest_s = 0.0
    for expected, state in stream:
        began = time.monotonic()
        batch, after = client.next()
        longest_s = max(longest_s, time.monotonic() - began)
        assert_equal_batches(batch, expected)
        assert after == state
    parts = [part.key for part in Store.open(str(home / "local")).manifest.parts if part.documents]
    assert sorted(set(delay.parts)) == sorted(parts)
    assert len(delay.parts) == len(parts), "a part was fetched twice"
    # a step opens at most the documents of all rows, twice; each part takes a few questions
    assert 0.3 < longest_s < 1.0 + 2 * layout.rows * 0.5
    assert told
    assert "come slowly from where the store lies" in told[0]
    delay.close()
