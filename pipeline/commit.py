"""The commit record: a JSON file beside a part that says its task is done and what came of it."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.corpus import Reject, Task
from pipeline.files import join, read_bytes, size_of
from pipeline.manifest import PARTS, PartEntry, canonical, without_unused
from pipeline.part import FORMAT, PartHead
from pipeline.settings import BuildSettings

_UNUSED_OPTIONS = (("encoding", "utf-8"), ("newlines", "keep"), ("separator", ""))  # later than 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """What came of a task. Metadata only: this is all that travels to the driver.

    Attributes:
        key: Of the task; the name of its part.
        definition: What the key is the hash of.
        documents: Kept, in all splits.
        documents_validation: Of these, held out.
        tokens: Of text; EOD not counted.
        tokens_validation: Of these, held out.
        bytes: Of text in UTF-8.
        empty: Documents without text, left out.
        longest: Tokens of the longest document.
        cut: Texts that were cut into several documents.
        pieces: These documents.
        rejects: Bad records, in the order of the corpus.
        size_bytes: Of the part.
        sha256: Of the part.
    """

    key: str
    definition: dict[str, Any]
    documents: int
    documents_validation: int
    tokens: int
    tokens_validation: int
    bytes: int
    empty: int
    longest: int
    cut: int = 0
    pieces: int = 0
    rejects: tuple[Reject, ...]
    size_bytes: int
    sha256: str

    @property
    def rejected(self) -> Counter[str]:
        """Number of bad records by reason."""
        return Counter(reject.reason for reject in self.rejects)

    @property
    def entry(self) -> PartEntry:
        """The part's line in the manifest."""
        return PartEntry(
            key=self.key,
            documents=self.documents,
            tokens=self.tokens,
            bytes=self.bytes,
            size_bytes=self.size_bytes,
            sha256=self.sha256,
            record_sha256=hashlib.sha256(record_bytes(self)).hexdigest(),
        )


def record_bytes(record: TaskRecord) -> bytes:
    """The record's file."""
    return canonical(without_unused(asdict(record), ("cut", "pieces")))


def define(
    task: Task, identity: Sequence[str], *, tokenizer: str, settings: BuildSettings
) -> dict[str, Any]:
    """All that the content of a task's part depends on.

    Args:
        task: What is read. Its URLs do not count: a corpus may move.
        identity: sha256 of each extent's input.
        tokenizer: sha256 of the tokenizer.
        settings: Of the build.
    """
    unused = {"max_document_tokens": settings.max_document_tokens, "skip": list(task.skip)}
    return without_unused(unused, tuple(unused)) | {
        "format": FORMAT,
        "tokenizer": tokenizer,
        "held_out": settings.held_out,
        "options": {
            name: value
            for name, value in asdict(task.options).items()
            if (name, value) not in _UNUSED_OPTIONS
        },
        "inputs": [
            {
                "source": extent.source,
                "form": extent.form,
                "packing": extent.packing,
                "start": extent.start,
                "end": extent.end,
                "sha256": digest,
            }
            for extent, digest in zip(task.extents, identity, strict=True)
        ],
    }


def key_of(definition: dict[str, Any]) -> str:
    """The task key: 128 bits of the sha256 of its definition, in hex."""
    return hashlib.sha256(canonical(definition)).hexdigest()[:32]


def find_record(out: str, head: PartHead) -> TaskRecord | None:
    """The record of a task that was committed before, if its part is there with the right size."""
    try:
        saved = json.loads(read_bytes(join(out, PARTS, f"{head.key}.json")))
        rejects = tuple(Reject(**reject) for reject in saved.pop("rejects"))
        record = TaskRecord(**saved, rejects=rejects)
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # not committed, or torn by other hands: the task is simply done again
    size = size_of(join(out, PARTS, f"{head.key}.arrow"))
    matches = record.key == head.key == key_of(record.definition)
    return record if matches and size == record.size_bytes else None
