"""What the user named -> the files it means, each with a name that moving the corpus keeps."""

import glob
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.files import filesystem, local_path, read_bytes
from pipeline.forms import is_named_as_corpus
from pipeline.steady import patiently

_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One file of a corpus.

    Attributes:
        url: Where it is read; stands in no file of a store.
        name: Its path below the folder that all inputs share; what a store knows it by.
        size: Bytes on disk.
        asked: Named by the user (or by a glob), not found by walking a folder.
    """

    url: str
    name: str
    size: int
    asked: bool


@dataclass(frozen=True, slots=True)
class _Found:
    url: str
    parts: tuple[str, ...]  # scheme, then the names of the path
    size: int
    asked: bool


def list_inputs(inputs: Sequence[str]) -> list[InputFile]:
    """Files of all `inputs` (files, folders, globs, URLs), once each, sorted by name.

    Folders are walked to their depths; names that begin with a dot are left out there. A file that
    bears glob signs in its own name is taken by that name. `@LIST` stands for the inputs that a
    file or URL names, one a line (blank lines and those that begin with # say nothing).

    Raises:
        DataError: An input is missing, matches nothing, or a name is not Unicode.
    """
    if not inputs:
        raise DataError("No corpus was given. Name at least one file, folder, glob or URL.")
    found: dict[str, _Found] = {}
    roots: list[tuple[str, ...]] = []
    for given in _named(inputs):
        local = local_path(given) is not None
        root, files = _local(given) if local else _remote(given)
        roots.append(root)
        for file in files:
            if file.url not in found or file.asked:
                found[file.url] = file
    depth = _shared(roots)
    listed = [
        InputFile(url=f.url, name=_name(f.parts[depth:]), size=f.size, asked=f.asked)
        for f in found.values()
    ]
    return sorted(listed, key=lambda file: file.name)


def _named(inputs: Sequence[str]) -> Iterator[str]:
    for given in inputs:
        if not given.startswith("@") or os.path.lexists(given):
            yield given
            continue
        try:
            lines = read_bytes(given[1:]).decode("utf-8-sig").split("\n")
        except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError) as error:
            raise DataError(
                f"{given} names a list of inputs, and {given[1:]} can not be read as one "
                f"({error}). Give a text file in UTF-8 with a file, folder, glob or URL a line."
            ) from error
        found = [line.removesuffix("\r") for line in lines]
        named = [line for line in found if line.strip() and not line.startswith("#")]
        if not named:
            raise DataError(f"{given} names no input: every line of {given[1:]} is blank.")
        yield from named


def _shared(roots: list[tuple[str, ...]]) -> int:
    """How many leading names all roots have in common."""
    steps = zip(*roots, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda step: len(set(step)) == 1, steps))


def _name(parts: tuple[str, ...]) -> str:
    name = "/".join(parts)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"The file name {name!r} is not valid Unicode, and a store is written in Unicode. "
            "Rename the file."
        ) from error
    return name


def _local(given: str) -> tuple[tuple[str, ...], list[_Found]]:
    path = Path(os.path.abspath(local_path(given) or given))  # noqa: PTH100 (resolve() would follow links)
    if path.is_file():
        return _parts(path.parent), [_file(path, asked=True)]
    if path.is_dir():
        return _parts(path), list(_walk(path))
    if not _MAGIC & set(given):
        raise DataError(f"{given} is not there (or no file or folder). Check the path.")
    steps = path.parts
    plain = next(i for i, step in enumerate(steps) if _MAGIC & set(step))
    found: list[_Found] = []
    for match in glob.glob(str(path), recursive=True):  # noqa: PTH207 (no dot names)
        hit = Path(match)
        found += [_file(hit, asked=True)] if hit.is_file() else _walk(hit)
    if not found:
        raise DataError(f"No file matches {given}. Check the pattern (and quote it in the shell).")
    return _parts(Path(*steps[:plain])), found


def _walk(folder: Path) -> Iterator[_Found]:
    for where, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            if Path(where, name).is_symlink():  # to follow it could lead round in a circle
                raise DataError(
                    f"{Path(where, name)} is a link to a folder, which is not followed: its "
                    "documents would be missing. Name the folders one by one, or remove the link."
                )
        for name in names:
            path = Path(where, name)
            if name.startswith("."):
                continue
            if is_named_as_corpus(name) and path.is_symlink() and not path.exists():
                raise DataError(
                    f"{path} is a link to {path.readlink()}, which is not there: its documents "
                    "would be missing. Bring the file back, or remove the link."
                )
            if path.is_file():
                yield _file(path, asked=False)


def _refuse(error: OSError) -> None:
    raise DataError(
        f"{error.filename} can not be looked into ({error.strerror}): its documents would be "
        "missing. Give it rights, or name the other files and folders one by one."
    ) from error


def _parts(path: Path) -> tuple[str, ...]:
    return ("file", *path.parts[1:])


def _file(path: Path, *, asked: bool) -> _Found:
    size = path.stat().st_size
    if asked and not size:
        _check_plain(path)
    return _Found(str(path), _parts(path), size, asked)


def _check_plain(path: Path) -> None:
    """A file of no size that gives bytes lies on no disk: some give them without an end."""
    try:
        with path.open("rb", buffering=0) as file:
            found = file.read(1)
    except OSError as error:
        raise DataError(
            f"{path} can not be read ({error.strerror}). Name a file on a disk."
        ) from error
    if found:
        raise DataError(
            f"{path} is said to be empty and gives bytes: the system makes them up as they are "
            "read. Copy them into a file on a disk and name that."
        )


def _remote(given: str) -> tuple[tuple[str, ...], list[_Found]]:
    system, path = filesystem(given)
    scheme = given.split("://", 1)[0]

    def parts(name: str) -> tuple[str, ...]:
        return (scheme, *(step for step in name.split("/") if step))

    def file(name: str, size: int | None, *, asked: bool) -> _Found:
        if size is None:
            raise DataError(f"{given} does not say how long it is. Download it and give the copy.")
        return _Found(system.unstrip_protocol(name), parts(name), size, asked)

    try:
        info = patiently(lambda: system.info(path), url=given, what="does not answer")
    except FileNotFoundError:
        info = dict[str, Any](type="nothing")  # a pattern, or a folder of a store that has none
    if info["type"] == "file":
        return parts(path)[:-1], [file(path, info["size"], asked=True)]
    magic = bool(_MAGIC & set(path))
    look = system.glob if magic else system.find
    hits = patiently(lambda: look(path, detail=True), url=given, what="does not answer")
    found = [
        file(name, info["size"], asked=magic)
        for name, info in hits.items()
        if info["type"] == "file" and (magic or not _hidden(name, below=path))
    ]
    if not found:
        raise DataError(f"{given} is not there or holds no file. Check the address.")
    root = parts(path)
    if magic:
        root = root[: next(i for i, step in enumerate(root) if _MAGIC & set(step))]
    return root, found


def _hidden(name: str, *, below: str) -> bool:
    return any(step.startswith(".") for step in name[len(below) :].split("/"))
