"""First bytes of a file -> what it is. Its name is asked only where the bytes leave it open."""

import json
import re
from collections.abc import Iterator
from typing import Literal

from pipeline.archives import DamagedArchiveError, Packing, packing_of, unpack
from pipeline.errors import DataError
from pipeline.files import open_binary

Form = Literal["jsonl", "txt", "wikitext"]

BOM = b"\xef\xbb\xbf"
TITLE = re.compile(rb" = [^=\s].* = \r?\n?")  # of an article; sections have more signs
_HEAD = 1 << 16  # bytes looked at
_SUFFIXES: dict[str, Form] = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "txt": "txt",
    "text": "txt",
    "tokens": "wikitext",
}
_PACKED = {"gz", "zst", "bz2", "xz"}
_LATER = {  # no text in the shape they have; better refused than read as noise
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"PK\x03\x04": "zip",
    b"\x89PNG": "PNG",
    b"%PDF": "PDF",
}


def is_known(name: str) -> bool:
    """Whether a file met in a folder is taken for a part of the corpus."""
    return _suffix(name) in _SUFFIXES


def form_of(url: str, *, text_key: str) -> tuple[Form, Packing]:
    """Look into a file.

    A file is jsonl if its first line that is not blank is a JSON object; in a file called .txt the
    object must also hold `text_key`. A wikitext file begins with a title line or is called .tokens.
    All other text is one document.

    Raises:
        DataError: The bytes belong to a format that cannot be read here.
    """
    with open_binary(url) as file:
        raw = file.read(_HEAD)
    packing = packing_of(raw)
    head = b"".join(_until_damage(raw, packing))
    for magic, what in _LATER.items():
        if head.startswith(magic):
            raise DataError(
                f"{url} is a {what} file, and the corpus must be jsonl, txt or wikitext (plain, "
                "gz, bz2, xz or zst). Convert it, or leave it out."
            )
    suffix = _suffix(url)
    lines = head.removeprefix(BOM).split(b"\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    whole = first < len(lines) - 1 or len(raw) < _HEAD
    if _is_object(lines[first], whole=whole, key=text_key if suffix == "txt" else None):
        return "jsonl", packing
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix], packing
    return ("wikitext" if TITLE.fullmatch(lines[first]) else "txt"), packing


def _until_damage(raw: bytes, packing: Packing) -> Iterator[bytes]:
    try:
        yield from unpack([raw], packing)
    except DamagedArchiveError:
        return  # cut by the look, or damaged: reading will tell


def _is_object(line: bytes, *, whole: bool, key: str | None) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    if not whole:  # longer than the look
        return key is None or json.dumps(key).encode() in line
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and (key is None or key.split(".")[0] in value or key in value)


def _suffix(name: str) -> str:
    steps = name.rsplit("/", 1)[-1].lower().split(".")[1:]
    while len(steps) > 1 and steps[-1] in _PACKED:
        steps.pop()
    return steps[-1] if steps else ""
