"""The manifest: what a store is made of, and whether what lies there is that."""

import hashlib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.build_lock import builder_of
from pipeline.errors import DataError, missing_file
from pipeline.files import is_temporary, join, list_folder, local_path, read_bytes, sha256_of

FORMAT = "longrow-store-1"
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.model"
INDEX = "index.arrow"
REJECTS = "rejects.jsonl"
DROPS = "dropped.jsonl"
PARTS = "parts"
BUILDING = "building"  # a folder that is there only while a training reads along (publish.py)
SPLIT_RULE = "sha256(text)[:8], big-endian, below held_out * 2**64: validation"
_BARE = re.compile(r"[A-Za-z0-9_-]+(\.[a-z]+)?")
_BUILD_AGAIN = "Run `longrow build` again with the same corpus: it keeps what is whole."


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEntry:
    """One part, as the manifest knows it; its documents follow those of the part before."""

    key: str
    documents: int
    tokens: int  # EOD not counted
    bytes: int  # of text
    size_bytes: int  # of the file
    sha256: str
    record_sha256: str  # of the commit record beside it

    def __post_init__(self) -> None:
        _bare(self.key, self.sha256)

    @property
    def name(self) -> str:
        return f"{PARTS}/{self.key}.arrow"

    @property
    def record_name(self) -> str:
        return f"{PARTS}/{self.key}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file beside the parts."""

    name: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        _bare(self.name)


def _bare(*names: str) -> None:
    """Refuse what a stranger's store would have us open, or remove, elsewhere.

    Raises:
        DataError: Such a name leads out of the store, or of the cache.
    """
    for name in names:
        if not isinstance(name, str) or not _BARE.fullmatch(name):
            raise DataError(
                f"A store names {name!r} as one of its files: a bare name was wanted, without a "
                "path. Do not trust this store."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that defines a store. Nothing in it tells when, where or by how many it was built.

    Attributes:
        vocab_size: Ids in all; none in the parts is as large.
        bos: Id that a reader puts before a document.
        eod: Id that stands after each document.
        dtype: Of the ids: `uint16` or `uint32`.
        held_out: Part of the documents in the validation split.
        split_rule: How a document's split is found.
        documents: In all splits.
        tokens: Of text; EOD not counted.
        bytes: Of text in UTF-8.
        empty: Documents without text, left out.
        max_document_tokens: Longer texts were cut into several documents; 0: none was.
        cut: Texts that were cut.
        pieces: Documents that came of them.
        dropped: Documents that repeat an earlier text and stand in no split; dropped.jsonl names
            them. They are counted in documents, tokens and bytes: the parts hold them.
        rejected: Bad records by reason.
        duplicate_ids: How many ids stand at more than one document (kept all the same).
        first_duplicates: Some of them, with the number of documents of each.
        parts: In store order.
        files: Tokenizer, index and rejects.
        fingerprint: sha256 of all the above.
    """

    format: str = FORMAT
    vocab_size: int
    bos: int
    eod: int
    dtype: str
    held_out: float
    split_rule: str = SPLIT_RULE
    documents: int
    tokens: int
    bytes: int
    empty: int
    max_document_tokens: int = 0
    cut: int = 0
    pieces: int = 0
    dropped: int = 0
    rejected: dict[str, int]
    duplicate_ids: int
    first_duplicates: dict[str, int]
    parts: tuple[PartEntry, ...]
    files: tuple[FileEntry, ...]
    fingerprint: str = ""

    @property
    def tokenizer(self) -> str:
        """sha256 of the tokenizer."""
        return next(file.sha256 for file in self.files if file.name == TOKENIZER)

    def sealed(self) -> "Manifest":
        """This manifest with its fingerprint."""
        return replace(self, fingerprint=_fingerprint(_said(self)))


_UNUSED = ("max_document_tokens", "cut", "pieces", "dropped")


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest's file."""
    return canonical(_said(manifest))


def _said(manifest: Manifest) -> dict[str, Any]:
    return without_unused(asdict(manifest), _UNUSED)


def without_unused(said: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Leave out what says "off": stores that do not use an option have the bytes of before it."""
    return {name: value for name, value in said.items() if value or name not in names}


def canonical(value: Any) -> bytes:
    """JSON with one spelling only: sorted keys, UTF-8, a line end."""
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()


def read_manifest(store: str) -> Manifest:
    """Read and check a manifest.

    Raises:
        DataError: There is none, or it is damaged, changed by hand or of another version.
    """
    url = join(store, MANIFEST)
    try:
        data = read_bytes(url)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"{store} holds no {MANIFEST}: {_why_none(store)}") from error
    try:
        saved = json.loads(data)
        found = saved["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{url} is damaged: it is no JSON manifest. {_BUILD_AGAIN}") from error
    if found != FORMAT:
        raise DataError(
            f"{url} is of format {found!r}, this version reads {FORMAT!r}. Build the store anew."
        )
    if _fingerprint(saved) != saved.get("fingerprint"):
        raise DataError(
            f"{url} was changed: its fingerprint does not fit what it says. {_BUILD_AGAIN}"
        )
    try:
        parts = tuple(PartEntry(**part) for part in saved.pop("parts"))
        files = tuple(FileEntry(**file) for file in saved.pop("files"))
        return Manifest(**saved, parts=parts, files=files)
    except (TypeError, LookupError) as error:
        raise DataError(f"{url} is no manifest of a store ({error}). {_BUILD_AGAIN}") from error


def _why_none(store: str) -> str:
    """Why there is no manifest, and what to do."""
    begun = len(list_folder(join(store, PARTS)))
    training, builder = bool(list_folder(join(store, BUILDING))), builder_of(store)
    if training and (builder or local_path(store) is None):
        return (
            f"a training is building it{f' ({builder})' if builder else ''}, with {begun} files so "
            "far. Wait for that, or look at the run with `longrow show RUN`; if it has ended, "
            "`longrow resume RUN` goes on with both."
        )
    if builder:
        return f"it is being built at this moment, by {builder}: wait until that has ended."
    if training:
        return (
            f"a training was building it and has ended ({begun} files are there). `longrow resume "
            "RUN` goes on with both, `longrow build` with the build alone."
        )
    if begun:
        return f"its build was not finished ({begun} files are there). {_BUILD_AGAIN}"
    return "it is no store. Build one with `longrow build CORPUS --out STORE`."


def faults(store: str, manifest: Manifest, *, rehash: bool) -> Iterator[str]:
    """What does not fit the manifest, a sentence each.

    Args:
        store: Where the store lies.
        manifest: What it says of itself.
        rehash: Read every file; else sizes only (a listing for all parts) and the small files.
    """
    beside = list_folder(store)
    parts = list_folder(join(store, PARTS))
    for file in manifest.files:
        small = file.name not in (REJECTS, DROPS)
        yield from _fault(
            join(store, file.name), beside.get(file.name), file, rehash=rehash or small
        )
    for part in manifest.parts:
        size = parts.get(f"{part.key}.arrow")
        yield from _fault(join(store, part.name), size, part, rehash=rehash)
        record = join(store, part.record_name)
        if f"{part.key}.json" not in parts:
            yield f"{record}, the record of a part, is missing. {_BUILD_AGAIN}"
        elif rehash and sha256_of(record) != part.record_sha256:
            yield f"{record}, the record of a part, was changed. Remove it. {_BUILD_AGAIN}"
    ours = {f"{part.key}.{kind}" for part in manifest.parts for kind in ("arrow", "json")}
    for name in sorted(parts):
        if name not in ours and not is_temporary(name):
            yield (
                f"{join(store, PARTS, name)} is foreign: the manifest does not name it. "
                "Move it away, or run `longrow build` again if a build was cut short."
            )


def part_faults(store: str, part: PartEntry) -> Iterator[str]:
    """What is wrong with the bytes of one part of a local store; nothing when they are right."""
    url = join(store, part.name)
    path = local_path(url)
    size = path.stat().st_size if path is not None and path.is_file() else None
    yield from _fault(url, size, part, rehash=True)


def _fault(
    url: str, size: int | None, entry: PartEntry | FileEntry, *, rehash: bool
) -> Iterator[str]:
    if size is None:
        yield str(missing_file(url))
    elif size != entry.size_bytes:
        yield (
            f"{url} holds {size:,} bytes, the manifest says {entry.size_bytes:,}. "
            f"Remove it. {_BUILD_AGAIN}"
        )
    elif rehash and sha256_of(url) != entry.sha256:
        yield (
            f"{url} has the right size and the wrong sha256: a bit flipped, or it belongs to "
            f"another store. Remove it. {_BUILD_AGAIN}"
        )


def _fingerprint(saved: dict[str, Any]) -> str:
    said = {name: value for name, value in saved.items() if name != "fingerprint"}
    return hashlib.sha256(canonical(said)).hexdigest()
