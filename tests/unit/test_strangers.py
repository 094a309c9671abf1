"""What strangers send cannot run anything, nor reach a file outside its folder."""

import hashlib
import json
import os
import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFile

from jobs.config import read_config
from jobs.entry import Exit
from model.config import ModelConfig
from model.transformer_xl import TransformerXL
from model.weights import save_weights
from pipeline.errors import DataError
from pipeline.files import filesystem
from pipeline.manifest import canonical, read_manifest
from tests.command import code_of
from tests.unit.test_store import build
from trainer.checkpoint import (
    CheckpointError,
    load_average,
    load_memory,
    load_optimizer,
    load_weights,
)
from trainer.errors import ConfigError
from trainer.remote_run import RemoteRun

MEMORY = fsspec.filesystem("memory")
SMALL = ModelConfig(vocab_size=9, layers=1, width=4, heads=1, head_width=4, inner_width=4, memory=2)


class Bomb:
    """Its pickle makes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """What is there if something ran."""
    path = tmp_path / "it-ran"
    pickle.loads(pickle.dumps(Bomb(path)))  # it would be seen
    assert path.exists()
    path.rmdir()
    yield path
    assert not path.exists()


def of_a_stranger(mark: Path) -> dict[str, bytes]:
    """Tensors as pickles, in the two ways that torch has written them."""
    files: dict[str, bytes] = {}
    for name, new in (("zip", True), ("legacy", False)):
        path = mark.with_name(name)
        torch.save({"w": Bomb(mark)}, path, _use_new_zipfile_serialization=new)
        files[name] = path.read_bytes()
    return files | {"pickle": pickle.dumps(Bomb(mark))}


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle"])
def test_a_pickle_in_the_place_of_tensors_is_refused_and_runs_nothing(
    kind: str, mark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = TransformerXL(SMALL)
    save_weights(model, tmp_path / "weights")
    names = ("model", "average", "optimizer", "memory-0")
    for name in names:
        (tmp_path / "weights" / f"{name}.safetensors").write_bytes(of_a_stranger(mark)[kind])
    loads: list[Callable[[], object]] = [
        lambda: load_weights(tmp_path / "weights", model),
        lambda: load_average(tmp_path / "weights", model),
        lambda: load_optimizer(tmp_path / "weights", model, torch.optim.AdamW(model.parameters())),
        lambda: load_memory(tmp_path / "weights", (0, 1), torch.device("cpu")),
    ]
    for load in loads:
        with pytest.raises(CheckpointError, match="cannot be read"):
            load()
    for words in (["generate", "--prompt", "a"], ["evaluate"], ["export"]):
        out = [str(tmp_path / "out")] if words == ["export"] else []
        assert code_of(words[0], str(tmp_path / "weights"), *words[1:], *out) is Exit.BAD_USE
    told = capsys.readouterr()
    assert "Traceback" not in told.err + told.out


def seal(store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as somebody would who can write a right fingerprint."""
    said = json.loads((store / "manifest.json").read_text())
    change(said)
    del said["fingerprint"]
    said["fingerprint"] = hashlib.sha256(canonical(said)).hexdigest()
    (store / "manifest.json").write_bytes(canonical(said))


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said["parts"][0].update(key="../../elsewhere"),
        lambda said: said["parts"][0].update(key="/etc/passwd"),
        lambda said: said["parts"][0].update(key="a\0b"),
        lambda said: said["parts"][0].update(key="a\n"),
        lambda said: said["parts"][0].update(sha256="../mine"),
        lambda said: said["parts"][0].update(sha256=7),
        lambda said: said["files"][0].update(name="../tokenizer.model"),
        lambda said: said["files"][0].update(name=".."),
    ],
)
def test_a_store_whose_manifest_leads_out_of_it_is_refused(
    change: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    store = build(tmp_path / "s")
    seal(store, change)
    with pytest.raises(DataError, match="a bare name was wanted"):
        read_manifest(str(store))


@pytest.mark.parametrize("key", ["../../evil", "/etc/evil", "evaluations/../../../evil", "./a"])
def test_a_bucket_cannot_have_a_file_written_outside_the_copy_of_its_run(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name = f"/{uuid.uuid4().hex}/run"
    MEMORY.pipe_file(f"{name}/config.json", b"{}")
    MEMORY.store[f"{name}/{key}"] = MemoryFile(MEMORY, f"{name}/{key}", b"evil")
    with pytest.raises(DataError, match="leads out of it"):
        RemoteRun(f"memory:/{name}")
    assert [path for path in tmp_path.rglob("*") if "evil" in path.name] == []


@pytest.mark.parametrize("key", ["", "checkpoints/"])
def test_a_folder_that_a_console_made_in_a_bucket_is_no_file(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name = f"/{uuid.uuid4().hex}/run"

    def find(place: str, **_: object) -> dict[str, Any]:  # as s3fs gives it
        assert place == name
        return {f"{name}/{key}": {"type": "file", "size": 0}}

    monkeypatch.setattr(MEMORY, "find", find)
    monkeypatch.setattr("trainer.mirror.filesystem", lambda _url: (MEMORY, name))
    run = RemoteRun(f"memory:/{name}")
    assert run.mirror.files() == {}
    assert run.is_new()


@pytest.mark.parametrize("url", ["memory://reference", "memory://dask", "memory://a/dask://b"])
def test_a_bucket_may_be_called_as_such_an_address_is(url: str) -> None:
    filesystem(url)


@pytest.mark.parametrize(
    "url",
    [
        "reference://::memory://a/refs.json",
        "reference::memory://a/refs.json",
        "simplecache::reference://x",
        "dask://h:8786/x",
    ],
)
def test_an_address_that_could_run_what_a_stranger_wrote_is_refused(url: str) -> None:
    with pytest.raises(DataError, match="can run what a stranger wrote"):
        filesystem(url)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "a\nb", "a\n", " a", ".a", "a\\b", "é"]
)
def test_the_name_of_a_run_cannot_leave_its_folder(name: str) -> None:
    with pytest.raises(ConfigError, match="it names a folder"):
        read_config(base={"run": {"name": name}})


@pytest.mark.parametrize("key", ["run.name", "run.folder", "data.store", "tracking.uri"])
def test_a_zero_byte_in_a_config_is_a_sentence(key: str) -> None:
    section, _, name = key.partition(".")
    with pytest.raises(ConfigError, match=f"^{key} .+ holds a zero byte"):
        read_config(base={section: {name: "a\0b"}})
    with pytest.raises(ConfigError, match=r"^data\.inputs .+ holds a zero byte"):
        read_config(base={"data": {"inputs": ["a", "b\0"]}})
