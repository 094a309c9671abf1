"""One build of a store at a time: a second is refused while the first lives, and only so long."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from pipeline import remote_lock
from pipeline.build import build_store, prepare
from pipeline.build_lock import LOCK
from pipeline.errors import DataError
from pipeline.files import exists, filesystem, list_folder, write_whole
from pipeline.progress import BuildProgress
from pipeline.publish import Publisher
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer

ROOT = Path(__file__).parents[2]
SETTINGS = BuildSettings(task_bytes=300)
BUILT = r"is being built at this moment, by process \d+ on "


@pytest.fixture
def home(tmp_path: Path) -> Path:
    lines = [json.dumps({"text": f"text {i} " * 9}) for i in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "byte").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    return tmp_path


def build(
    home: Path,
    progress: Callable[[BuildProgress], None] = lambda _: None,
    publisher: Publisher | None = None,
    *,
    out: str = "",
) -> str:
    return build_store(
        [str(home / "a.jsonl")],
        tokenizer=str(home / "byte"),
        out=out or str(home / "store"),
        settings=SETTINGS,
        progress=progress,
        publisher=publisher,
    ).fingerprint


@pytest.mark.parametrize("training", [False, True])
def test_a_second_build_of_a_store_is_refused_and_the_first_goes_on_unharmed(
    home: Path, *, training: bool
) -> None:
    looks: list[str] = []

    def look(_: BuildProgress) -> None:
        half = home / "store/parts/.longrow-half"
        if looks or not half.parent.is_dir():
            return
        half.touch()  # as an actor of the first writes one
        with pytest.raises(DataError, match=BUILT):
            build(home)
        with pytest.raises(DataError, match=BUILT):
            prepare(
                [str(home / "a.jsonl")],
                tokenizer=str(home / "byte"),
                out=str(home / "store"),
                settings=SETTINGS,
            )
        assert half.exists()
        with pytest.raises(DataError) as caught:
            Store.open(str(home / "store"))
        looks.append(str(caught.value))

    build(home, look, Publisher(str(home / "store")) if training else None)
    (said,) = looks
    assert "longrow build" not in said
    assert ("a training is building it (process" in said) == training
    assert Store.open(str(home / "store")).verify() == []
    assert not (home / "store" / LOCK).exists()


@pytest.mark.parametrize("training", [False, True])
def test_a_build_that_was_killed_blocks_no_other(home: Path, *, training: bool) -> None:
    publisher = "Publisher(at('store'))" if training else "None"
    code = (
        "import os, signal\nfrom pipeline.build import build_store\n"
        "from pipeline.publish import Publisher\nfrom pipeline.settings import BuildSettings\n"
        f"at = lambda name: os.path.join({str(home)!r}, name)\n"
        "build_store([at('a.jsonl')], tokenizer=at('byte'), out=at('store'),\n"
        f"    settings=BuildSettings(task_bytes=300), publisher={publisher},\n"
        "    progress=lambda done: done.documents > 3 and os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (home / "store" / LOCK).read_text().startswith("process ")
    with pytest.raises(DataError) as caught:
        Store.open(str(home / "store"))
    said = "a training was building it and has ended" if training else "build was not finished"
    assert said in str(caught.value)
    assert build(home) == Store.open(str(home / "store")).fingerprint
    assert not (home / "store" / LOCK).exists()
    assert not (home / "store/building").exists()


@pytest.fixture
def remote(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a store in memory, whose builds count every few milliseconds."""
    monkeypatch.setattr(remote_lock, "BEAT_S", 0.01)
    monkeypatch.setattr(remote_lock, "SILENCE_S", 0.3)
    monkeypatch.setattr(remote_lock, "SETTLE_S", 0.05)
    url = f"memory://{home.name}"
    yield url
    filesystem(url)[0].rm(url, recursive=True)


def test_a_second_build_of_a_remote_store_is_refused_and_the_first_goes_on_unharmed(
    home: Path, remote: str
) -> None:
    refused: list[str] = []

    def look(_: BuildProgress) -> None:
        if not refused:
            with pytest.raises(DataError, match=BUILT) as caught:
                build(home, out=remote)
            refused.append(str(caught.value))

    build(home, look, out=remote)
    assert refused
    assert Store.open(remote).verify() == []
    assert not exists(f"{remote}/{LOCK}")


@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
def test_a_build_of_a_remote_store_that_was_killed_blocks_no_other(
    home: Path, remote: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host != "elsewhere":
        monkeypatch.setattr(remote_lock, "_lives", pytest.fail)  # nobody waits for what is known
    dead = {"name": "dead", "host": host, "process": 2**22 + 1, "beat": 7}
    write_whole(f"{remote}/{LOCK}", json.dumps(dead).encode())
    assert build(home, out=remote) == Store.open(remote).fingerprint
    assert not exists(f"{remote}/{LOCK}")


def test_of_two_builds_that_come_to_a_remote_store_at_once_one_gives_way_and_builds_nothing(
    home: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = remote_lock._write

    def write_first(url: str, holder: Any) -> None:
        write(url, holder)
        write(url, replace(holder, name="other", host="elsewhere", process=1))

    monkeypatch.setattr(remote_lock, "_write", write_first)
    with pytest.raises(DataError, match="being built at this moment, by process 1 on elsewhere"):
        build(home, out=remote)
    assert list_folder(remote) == {LOCK: ANY}


def test_a_build_whose_remote_store_was_taken_writes_no_manifest(home: Path, remote: str) -> None:
    taker = {"name": "taker", "host": "elsewhere", "process": 1, "beat": 0}

    def take(_: BuildProgress) -> None:
        write_whole(f"{remote}/{LOCK}", json.dumps(taker).encode())

    with pytest.raises(DataError, match="being built at this moment, by process 1 on elsewhere"):
        build(home, take, out=remote)
    assert not exists(f"{remote}/manifest.json")
    assert exists(f"{remote}/{LOCK}")  # the other's
