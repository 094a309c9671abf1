"""First bytes of a file -> what it is. Its name is asked only where the bytes leave it open."""

import csv
import json
import re
from collections.abc import Iterator
from typing import Literal

from pipeline.archives import DamagedArchiveError, Packing, packing_of, unpack
from pipeline.errors import DataError
from pipeline.files import open_binary
from pipeline.json_values import is_too_deep, split_values

Form = Literal["jsonl", "json", "csv", "txt", "wikitext", "parquet", "arrow", "arrow stream"]
TABLES = ("parquet", "arrow", "arrow stream")  # read by columns.py

BOM = b"\xef\xbb\xbf"
TITLE = re.compile(rb" = [^=\s].* = \r?\n?")  # of an article; sections have more signs
_HEAD = 1 << 16  # bytes looked at
_SUFFIXES: dict[str, Form] = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "json",
    "csv": "csv",
    "tsv": "csv",
    "txt": "txt",
    "text": "txt",
    "tokens": "wikitext",
    "parquet": "parquet",
    "arrow": "arrow",
    "feather": "arrow",
}
_DELIMITERS = (",", "\t", ";", "|")
_PACKED = {"gz", "zst", "bz2", "xz"}
_TABLES: dict[bytes, Form] = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow stream",
}
_FOREIGN = {  # no text in the shape they have; better refused than read as noise
    b"FEA1": "Feather 1",
    b"ORC": "ORC",
    b"PK\x03\x04": "zip",
    b"\x89PNG": "PNG",
    b"%PDF": "PDF",
}


def form_of(url: str, *, text_key: str, encoding: str = "utf-8") -> tuple[Form, Packing]:
    """Look into a file.

    Parquet and Arrow begin with their own signs. A file is jsonl if its first line that is not
    blank is a JSON object; in a file called .txt the object must also hold `text_key`. It is json
    if it begins with an array of objects, and csv if its first line names a column `text_key`
    among others. A wikitext file begins with a title line or is called .tokens. All other text is
    one document.

    Raises:
        DataError: The bytes belong to a format that cannot be read here.
    """
    with open_binary(url) as file:
        raw = file.read(_HEAD)
    packing = packing_of(raw)
    head = b"".join(_until_damage(raw, packing))
    for magic, form in _TABLES.items():
        if head.startswith(magic):
            if packing != "plain":
                raise DataError(
                    f"{url} is a {form} file packed with {packing}: its rows can not be reached "
                    "inside. Unpack it."
                )
            return form, packing
    for magic, what in _FOREIGN.items():
        if head.startswith(magic):
            raise DataError(
                f"{url} is a {what} file, and the corpus must be jsonl, json, csv, txt, wikitext "
                "(plain, gz, bz2, xz or zst), Parquet or Arrow. Convert it, or leave it out."
            )
    return _form_of_text(
        url, _in_utf8(head, encoding), whole=len(raw) < _HEAD, text_key=text_key
    ), packing


def _form_of_text(url: str, head: bytes, *, whole: bool, text_key: str) -> Form:
    suffix = _suffix(url)
    key = text_key if suffix == "txt" else None
    text = head.removeprefix(BOM)
    lines = text.split(b"\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    if _is_object(lines[first], whole=first < len(lines) - 1 or whole, key=key):
        return "jsonl"
    if re.match(rb"\s*\[\s*\{", text) and _holds_key(text, key):
        return "json"
    columns = columns_of(lines[first], text_key=text_key)
    if suffix == "csv" or suffix == "tsv":
        if columns is None and text.strip():
            shown = lines[first][:200].decode(errors="replace").strip()
            raise DataError(
                f"{url} names no column {text_key!r} in its first line ({shown}). Name the column "
                "of the text with --text-key."
            )
        _check_once(url, columns, text_key)
        return "csv"
    if suffix == "json" and not _looks_like_json(text):
        return "txt"
    if suffix in _SUFFIXES and _SUFFIXES[suffix] not in TABLES:
        return _SUFFIXES[suffix]
    if columns is not None and len(columns[1]) > 1 and first < len(lines) - 1:
        _check_once(url, columns, text_key)
        return "csv"
    return "wikitext" if TITLE.fullmatch(lines[first]) else "txt"


def _check_once(url: str, columns: tuple[str, list[str]] | None, text_key: str) -> None:
    if columns is not None and columns[1].count(text_key) > 1:
        raise DataError(
            f"{url} names {columns[1].count(text_key)} columns {text_key!r} in its first line, and "
            "one was wanted. Rename the others, or name another with --text-key."
        )


def is_corpus(url: str, name: str, *, text_key: str, encoding: str = "utf-8") -> bool:
    """Whether a file met in a folder is taken: by its name, .json, .csv and .tsv by `text_key` too.

    Folders hold many of these that are no corpus: a manifest, a list of files.
    """
    suffix = _suffix(name)
    if suffix not in ("json", "csv", "tsv"):
        return suffix in _SUFFIXES
    with open_binary(url) as file:
        raw = file.read(_HEAD)
    head = _in_utf8(b"".join(_until_damage(raw, packing_of(raw))), encoding)
    if suffix == "json":
        return _looks_like_json(head) and _holds_key(head, text_key)
    return columns_of(head.split(b"\n")[0], text_key=text_key) is not None


def is_named_as_corpus(name: str) -> bool:
    """Whether a file met in a folder may be taken, as far as its name says it."""
    return _suffix(name) in _SUFFIXES


def columns_of(header: bytes, *, text_key: str) -> tuple[str, list[str]] | None:
    """Delimiter and names in a first line that has the column `text_key`; None if none has."""
    line = header.removeprefix(BOM).decode(errors="replace")
    for delimiter in _DELIMITERS:
        try:
            names = next(csv.reader([line], delimiter=delimiter, strict=True), [])
        except csv.Error:
            continue
        if text_key in names:
            return delimiter, names
    return None


def _looks_like_json(text: bytes) -> bool:
    return text.removeprefix(BOM).lstrip()[:1] in (b"{", b"[")


def _holds_key(text: bytes, key: str | None) -> bool:
    """Whether the first record of a JSON file names `key` (None: any will do)."""
    if key is None:
        return True
    _, value = next(split_values([(0, text.removeprefix(BOM))], limit=_HEAD), (0, b""))
    names = [json.dumps(name).encode() for name in (key, key.rsplit(".", 1)[-1])]
    return any(re.search(re.escape(name) + rb"\s*:", value or b"") for name in names)


def _in_utf8(head: bytes, encoding: str) -> bytes:
    if encoding == "utf-8":
        return head
    return head.decode(encoding, errors="ignore").encode(errors="ignore")


def _until_damage(raw: bytes, packing: Packing) -> Iterator[bytes]:
    try:
        yield from unpack([raw], packing)
    except DamagedArchiveError:
        return  # cut by the look, or damaged: reading will tell


def _is_object(line: bytes, *, whole: bool, key: str | None) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    if not whole or is_too_deep(line):  # longer than the look, or a bad record
        return key is None or json.dumps(key).encode() in line
    try:
        value = json.loads(line.decode())
    except ValueError:
        return False
    return isinstance(value, dict) and (key is None or key.split(".")[0] in value or key in value)


def _suffix(name: str) -> str:
    steps = name.rsplit("/", 1)[-1].lower().split(".")[1:]
    while len(steps) > 1 and steps[-1] in _PACKED:
        steps.pop()
    return steps[-1] if steps else ""
