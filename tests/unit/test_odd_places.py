"""What is no plain file or folder: a sentence that names it, and nothing half done."""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.entry import Exit, Outcome, explain, finish
from pipeline.build import build_store
from pipeline.errors import DataError
from pipeline.inputs import list_inputs
from pipeline.settings import BuildSettings, SettingsError
from pipeline.tokenizer import Tokenizer

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., object]:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "hello"}))
    (tmp_path / "bytes").write_text('{"format": "longrow-bytes", "version": 1}')

    def build(given: str = "", *, out: str = "", tokenizer: str = "") -> object:
        return build_store(
            [given or str(tmp_path / "a.jsonl")],
            tokenizer=tokenizer or str(tmp_path / "bytes"),
            out=out or str(tmp_path / "store"),
        )

    return build


@linux
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("/proc/self/status", "is said to be empty and gives bytes.*Copy them into a file"),
        ("/proc/self/mem", r"can not be read \(.*Name a file on a disk"),
        ("/proc/self/pagemap", "can not be read|gives bytes"),
        ("/dev/null", "is not there"),
        ("/dev/zero", "is not there"),
    ],
)
def test_an_input_that_lies_on_no_disk_is_refused(
    build: Callable[..., object], given: str, said: str
) -> None:
    with pytest.raises(DataError, match=f"{given} .*(?:{said})"):
        build(given)


@linux
@pytest.mark.parametrize("out", ["/proc/x", "/proc/self/x", "/dev/null", "/dev/null/x"])
def test_a_store_that_cannot_lie_there_is_refused(build: Callable[..., object], out: str) -> None:
    with pytest.raises(OSError, match=r"\[Errno") as raised:
        build(out=out)
    code, said = explain(raised.value)
    assert (code, out in said) == (Exit.BAD_USE, True)
    assert said.endswith("Name another file or folder.")


@linux
@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_no_tokenizer(build: Callable[..., object], device: str) -> None:
    with pytest.raises(DataError, match=f"{device} is a device and no file"):
        build(tokenizer=device)


def test_an_empty_file_is_no_tokenizer(build: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "empty.model").touch()
    with pytest.raises(DataError, match=r"empty\.model is empty: its writing was cut short"):
        build(tokenizer=str(tmp_path / "empty.model"))
    with pytest.raises(DataError, match="is empty"):
        Tokenizer.from_bytes(b"")


def test_a_link_to_a_folder_is_named_and_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "far").mkdir()
    for place in ("in", "far"):
        (tmp_path / place / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "in" / ".hidden").symlink_to(tmp_path / "far")
    assert len(list(list_inputs([str(tmp_path / "in")]))) == 1
    (tmp_path / "in" / "more").symlink_to(tmp_path / "far")
    with pytest.raises(DataError, match=r"more is a link to a folder, .*one by one"):
        list_inputs([str(tmp_path / "in")])


def test_a_link_to_nothing_in_a_folder_is_named_and_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(DataError, match=r"b\.jsonl is a link to .*gone\.jsonl, which is not there"):
        list_inputs([str(tmp_path)])
    (tmp_path / "b.jsonl").rename(tmp_path / "b.md")  # none that would be read
    (tmp_path / "latest").symlink_to(tmp_path / "gone")
    found = [file.name for file in list_inputs([str(tmp_path)])]
    assert found == ["a.jsonl"]
    (tmp_path / "b.md").rename(tmp_path / ".b.jsonl")
    assert [file.name for file in list_inputs([str(tmp_path)])] == ["a.jsonl"]


def test_a_folder_that_may_not_be_read_is_named_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut/a.jsonl").write_text("{}")
    (tmp_path / "b.jsonl").write_text("{}")
    scandir = os.scandir

    def refused(path: str) -> object:  # who runs the tests may be allowed everything
        if str(path).endswith("shut"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(DataError, match=r"/shut can not be looked into \(Permission denied\)"):
        list_inputs([str(tmp_path)])


def test_a_disk_that_fails_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> Outcome:
        raise OSError(errno.EIO, "Input/output error", "/data/a.jsonl")

    assert finish(work, []) is Exit.FAILED
    said = capsys.readouterr().err
    assert "/data/a.jsonl: Input/output error. Look at the disk" in said
    assert "traceback" not in said


@pytest.mark.parametrize("encoding", ["idna", "punycode", "rot13", "undefined", "nothing", "hex"])
def test_an_encoding_that_is_none_of_texts_is_refused_before_anything_is_read(
    encoding: str,
) -> None:
    with pytest.raises(SettingsError, match=f"encoding = '{encoding}' is no text encoding"):
        BuildSettings(encoding=encoding)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-7", "shift_jis", "hz", "cp037"])
def test_other_encodings_of_texts_are_taken(encoding: str) -> None:
    assert BuildSettings(encoding=encoding).encoding == encoding
