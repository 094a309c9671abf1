"""What a build says of itself while it goes on, so that a training may begin to read its store.

    STORE/building/plan.json        what is being built, written before the first task
    STORE/building/tokenizer.model  as the store will have it
    STORE/building/00000000.json    the part of task 0, committed: its line of the manifest to
                                    come, and the lengths and splits of its documents
    STORE/building/00000001.json    ...

A reader takes the parts as far as they follow each other without a gap: these are the first
documents of the store, and nothing that comes later changes them. The folder goes when the
manifest comes.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.commit import TaskRecord
from pipeline.corpus import Plan
from pipeline.errors import DataError
from pipeline.files import join, read_bytes, remove_folder, write_whole
from pipeline.manifest import BUILDING, TOKENIZER, PartEntry, canonical
from pipeline.part import dtype_for
from pipeline.part_lengths import read_lengths
from pipeline.settings import BuildSettings
from pipeline.tokenizer import Tokenizer

FORMAT = "longrow-building-2"
HEAD = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildHead:
    """What is known of a store before its first document.

    Attributes:
        plan: sha256 of all that was decided: which stretch of which file is which task, the
            tokenizer, the settings. Not of the texts: the parts have hashes of their own.
        tasks: Parts that the store will have.
        tokenizer: sha256 of the tokenizer.
        vocab_size: Ids in all.
        bos: Id that a reader puts before a document.
        eod: Id that stands after each document.
        dtype: Of the ids.
    """

    format: str = FORMAT
    plan: str
    tasks: int
    tokenizer: str
    vocab_size: int
    bos: int
    eod: int
    dtype: str


def head_of(plan: Plan, tokenizer: Tokenizer, settings: BuildSettings) -> BuildHead:
    """The head of the store that these make."""
    decided = {
        "tokenizer": tokenizer.sha256,
        "held_out": settings.held_out,
        "max_document_tokens": settings.max_document_tokens,
        "dedup": settings.dedup,
        "tasks": [
            {
                "options": asdict(task.options),
                "skip": list(task.skip),
                "extents": [
                    [e.source, e.form, e.packing, e.start, e.end]  # not its URL: a corpus may move
                    for e in task.extents
                ],
            }
            for task in plan.tasks
        ],
    }
    return BuildHead(
        plan=hashlib.sha256(canonical(decided)).hexdigest(),
        tasks=len(plan.tasks),
        tokenizer=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        bos=tokenizer.bos,
        eod=tokenizer.eod,
        dtype=dtype_for(tokenizer.vocab_size),
    )


class Publisher:
    """A build's voice: told of each committed task, it tells the readers of the store."""

    def __init__(self, store: str, *, begun: Callable[[], None] = lambda: None) -> None:
        """Say nothing yet; `begun` is called when readers may come."""
        self._store, self._folder, self._begun = store, join(store, BUILDING), begun

    def begin(self, head: BuildHead, tokenizer: Tokenizer) -> None:
        """Take back what an earlier build said, and say what this one is."""
        remove_folder(self._folder)
        write_whole(join(self._folder, TOKENIZER), tokenizer.model_bytes)
        write_whole(join(self._folder, HEAD), canonical(asdict(head)))
        self._begun()

    def committed(self, task: int, record: TaskRecord) -> None:
        """Say that a task, counted from 0 in the order of the plan, has its part."""
        entry = record.entry
        found = read_lengths(join(self._store, entry.name), entry)  # here, and by no reader
        num_tokens = found.num_tokens.astype("<u4").tobytes()
        split = found.split.tobytes()
        said = {
            "part": asdict(entry),
            "num_tokens": base64.b64encode(num_tokens).decode(),
            "split": base64.b64encode(split).decode(),
            "sha256": hashlib.sha256(num_tokens + split).hexdigest(),
        }
        write_whole(join(self._folder, _name(task)), canonical(said))


def read_head(store: str) -> BuildHead | None:
    """What is being built into `store`; None when no build says so.

    Raises:
        DataError: Another version of this program builds there.
    """
    url = join(store, BUILDING, HEAD)
    try:
        said = json.loads(read_bytes(url))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if said.get("format") != FORMAT:
        raise DataError(
            f"{url} is of format {said.get('format')!r}, this version reads {FORMAT!r}. Let the "
            "version that began the build end it."
        )
    return BuildHead(**said)


class Committed(NamedTuple):
    """A part that is there, and what rows must know of its documents."""

    entry: PartEntry
    num_tokens: npt.NDArray[np.int64]  # (documents,) EOD not counted
    split: npt.NDArray[np.uint8]  # (documents,)


def read_part(store: str, task: int) -> Committed | None:
    """The part of a task; None while it is not committed.

    Raises:
        DataError: What was said of it is damaged.
    """
    url = join(store, BUILDING, _name(task))
    try:
        data = read_bytes(url)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _committed(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{url} is damaged: its lengths are not those that were written. The same command "
            "again goes on with the build and writes it anew."
        ) from error


def _committed(said: dict[str, Any]) -> Committed:
    entry = PartEntry(**said["part"])
    num_tokens, split = base64.b64decode(said["num_tokens"]), base64.b64decode(said["split"])
    if said["sha256"] != hashlib.sha256(num_tokens + split).hexdigest():
        raise ValueError("other lengths")
    if (len(num_tokens), len(split)) != (4 * entry.documents, entry.documents):
        raise ValueError("lengths of other documents")
    lengths = np.frombuffer(num_tokens, "<u4").astype(np.int64)
    return Committed(entry, lengths, np.frombuffer(split, np.uint8))


def parts_identity(parts: Iterable[PartEntry]) -> str:
    """The sha256 of what these parts hold, in hex."""
    chain = hashlib.sha256()
    for part in parts:
        chain.update(line_of(part))
    return chain.hexdigest()


def line_of(part: PartEntry) -> bytes:
    """What a part adds to the identity of those before it."""
    return f"{part.key} {part.sha256}\n".encode()


def _name(task: int) -> str:
    return f"{task:08d}.json"
