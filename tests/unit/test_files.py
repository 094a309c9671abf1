"""Files appear whole or not at all, and inputs are named by what they share."""

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.errors import DataError
from pipeline.files import (
    join,
    list_folder,
    read_bytes,
    remove_temporary,
    sha256_of,
    write_whole,
    writing_whole,
)
from pipeline.inputs import list_inputs


def names(*inputs: Path | str) -> list[str]:
    return [file.name for file in list_inputs([str(given) for given in inputs])]


def corpus(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(str(path), b"old")

    def fill() -> None:
        with writing_whole(str(path)) as file:
            file.write(b"ne")
            raise OSError(errno.ENOSPC, "disk full")

    with pytest.raises(OSError, match="full"):
        fill()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_what_a_killed_writer_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    write_whole(str(tmp_path / "a"), b"")
    writer = writing_whole(str(tmp_path / "b"))
    writer.__enter__()  # never left, as by a kill
    assert len(list(tmp_path.iterdir())) == 2
    remove_temporary(str(tmp_path))
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
    with pytest.raises(FileNotFoundError):
        writer.__exit__(None, None, None)


def test_a_remote_file_reads_back_and_is_listed() -> None:
    url = "memory://longrow-files/x"
    write_whole(join(url, "parts", "a.bin"), b"abc")
    assert read_bytes(join(url, "parts", "a.bin")) == b"abc"
    assert list_folder(join(url, "parts")) == {"a.bin": 3}
    assert list_folder(url) == {"parts": None}
    assert sha256_of(join(url, "parts", "a.bin")).startswith("ba7816bf")
    assert names(url) == ["parts/a.bin"]


class Strict(MemoryFileSystem):
    """A file system that takes no setting it does not know, as that of sftp:// does."""

    protocol = "strict"
    store: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self) -> None:
        super().__init__()


def test_a_file_system_that_knows_no_listings_is_reached_all_the_same() -> None:
    fsspec.register_implementation("strict", Strict, clobber=True)
    write_whole("strict:///x/a", b"abc")
    assert read_bytes("strict:///x/a") == b"abc"


class Replaced(MemoryFileSystem):
    """A file system on which a file is replaced by another of its size when a read breaks off."""

    protocol = "replaced"
    store: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]
    breaks: ClassVar[list[bool]] = []  # whether the next opening breaks off, and is replaced

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        file = super()._open(path, mode, **options)
        if "r" not in mode or not self.breaks:
            return file
        if self.breaks.pop():
            self.pipe_file(path, b"b" * 30)
        return io.BytesIO(b"a" * 10)  # and there it ends


@pytest.mark.parametrize("replaced", [True, False])
def test_a_remote_file_that_is_replaced_while_it_is_read_is_never_half_of_each(
    monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    monkeypatch.setattr("pipeline.steady._wait", lambda _: None)
    fsspec.register_implementation("replaced", Replaced, clobber=True)
    url = "replaced:///a.txt"
    write_whole(url, b"a" * 30)
    Replaced.breaks = [replaced]
    if replaced:
        with pytest.raises(DataError, match=r"a\.txt was replaced while it was read"):
            read_bytes(url)
    else:
        assert read_bytes(url) == b"a" * 30
    assert not Replaced.breaks


def test_an_unknown_scheme_is_refused_in_a_sentence() -> None:
    with pytest.raises(DataError, match="nosuch://x cannot be reached"):
        read_bytes("nosuch://x")


def test_names_are_those_below_what_all_inputs_share(tmp_path: Path) -> None:
    corpus(tmp_path, "b/x.txt", "a/c/y.txt", "a/z.txt", "a/.hidden/q.txt", "a/.q")
    assert names(tmp_path) == ["a/c/y.txt", "a/z.txt", "b/x.txt"]
    assert names(tmp_path / "a") == ["c/y.txt", "z.txt"]
    assert names(tmp_path / "a", tmp_path / "b/x.txt") == ["a/c/y.txt", "a/z.txt", "b/x.txt"]
    assert names(tmp_path / "b/x.txt") == ["x.txt"]
    assert names(tmp_path / "*/x.txt", tmp_path / "b") == ["b/x.txt"]  # once, not twice
    assert names(tmp_path / "**/*.txt") == ["a/c/y.txt", "a/z.txt", "b/x.txt"]


def test_a_name_with_glob_signs_blanks_and_letters_of_any_script_is_a_name(tmp_path: Path) -> None:
    odd = "a[1] *?. ü字.txt"
    corpus(tmp_path, odd, "a1.txt")
    assert names(tmp_path / odd) == [odd]


@pytest.mark.parametrize("given", ["nowhere.jsonl", "nothing-*.txt", "empty"])
def test_an_input_that_is_not_there_is_refused_by_name(tmp_path: Path, given: str) -> None:
    with pytest.raises(DataError, match="not there" if "*" not in given else "No file matches"):
        list_inputs([str(tmp_path / given)])


def test_a_file_name_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("")
    with pytest.raises(DataError, match="not valid Unicode"):
        list_inputs([str(tmp_path)])


def test_a_list_stands_for_the_inputs_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus(tmp_path, "in/a b.txt", "in/é \u4e2d/\U0001f469\u200d.txt", "in/deep/c.txt", "@odd.txt")
    listed = f"\ufeff# what we read\n\nin/a b.txt\r\n{tmp_path}/in/deep\nin/é*/*.txt"
    (tmp_path / "my list").write_text(listed, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert (
        names("@my list")
        == names("in")
        == ["a b.txt", "deep/c.txt", "é \u4e2d/\U0001f469\u200d.txt"]
    )
    assert names("@odd.txt") == ["@odd.txt"]  # a file that is called so
    (tmp_path / "empty").write_text("# nothing\n\n")
    for given, says in (
        ("@nowhere", "nowhere can not be read as one"),
        ("@in", "in can not be read as one"),
        ("@empty", "names no input: every line of empty is blank"),
    ):
        with pytest.raises(DataError, match=says):
            names(given)


def test_a_file_that_goes_while_its_folder_is_listed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("half", "whole"):
        (tmp_path / name).write_bytes(b"123")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    scandir = os.scandir

    @contextmanager
    def late(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(path) as entries:
            found = list(entries)
        (tmp_path / "half").unlink()  # as a writer does that gives a file its name
        yield found

    monkeypatch.setattr(os, "scandir", late)
    assert list_folder(str(tmp_path)) == {"whole": 3, "link": 0}
