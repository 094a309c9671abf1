"""One task -> one part and its commit record. Plain Python; build_actor.py puts it behind Ray."""

import hashlib
from collections.abc import Callable
from functools import partial

import numpy as np

from pipeline.commit import TaskRecord, define, find_record, key_of, record_bytes
from pipeline.corpus import Document, Reject, Task
from pipeline.files import exists, join, remove, write_whole
from pipeline.manifest import MANIFEST, PARTS
from pipeline.part import Encoded, PartHead, dtype_for, writing_part
from pipeline.progress import Seen
from pipeline.records import identify, read_task
from pipeline.tokenizer import Tokenizer

_BLANKS = b" \t\n\r\v\f"
_IN_WORD = bytes(byte not in _BLANKS for byte in range(256))  # byte -> 0 or 1


class Builder:
    """Does one task at a time and can be asked meanwhile how far it is."""

    def __init__(
        self,
        *,
        tokenizer: bytes,
        out: str,
        held_out: float,
        tell: Callable[[Seen], None] = lambda _: None,
    ) -> None:
        self._tokenizer = Tokenizer.from_bytes(tokenizer)
        self._out = out
        self._held_out = held_out
        self._tell = tell
        self._task: Task | None = None
        self._documents = self._tokens = self._bytes = 0
        self._rejects: list[Reject] = []

    def seen(self) -> Seen:
        """How far the task is."""
        return Seen(
            task=str(self._task),
            documents=self._documents,
            tokens=self._tokens,
            bytes=self._bytes,
            rejected=len(self._rejects),
        )

    def build(self, task: Task) -> TaskRecord:
        """Commit a task: its part, then its record. One that was committed is only looked up.

        Raises:
            DataError: A file changed while it was read, or the tokenizer gives wrong ids.
            OSError: The disk refused; no part and no record of the task is there.
        """
        self._task = task
        self._documents = self._tokens = self._bytes = 0
        self._rejects = []
        identity = identify(task)
        definition = define(
            task, identity, tokenizer=self._tokenizer.sha256, held_out=self._held_out
        )
        head = PartHead(
            key=key_of(definition),
            tokenizer=self._tokenizer.sha256,
            vocab_size=self._tokenizer.vocab_size,
            eod=self._tokenizer.eod,
            dtype=dtype_for(self._tokenizer.vocab_size),
        )
        record = find_record(self._out, head)
        if record is None:
            if exists(join(self._out, MANIFEST)):
                remove(join(self._out, MANIFEST))  # the store is no longer what it says
            record = self._write(task, identity, definition, head)
            write_whole(join(self._out, PARTS, f"{head.key}.json"), record_bytes(record))
        return record

    def _write(
        self, task: Task, identity: list[str], definition: dict[str, object], head: PartHead
    ) -> TaskRecord:
        sources = list(dict.fromkeys(extent.source for extent in task.extents))
        empty = longest = num_bytes = 0
        held_out = [0, 0]  # documents, tokens
        with writing_part(join(self._out, PARTS, f"{head.key}.arrow"), head, sources) as part:
            watch = partial(self._read, of=task.num_bytes)
            for item in read_task(task, identity=identity, watch=watch):
                if isinstance(item, Reject):
                    self._rejects.append(item)
                    continue
                if not item.text:
                    empty += 1
                    continue
                document = encode_document(item, self._tokenizer, held_out=self._held_out)
                part.add(document)
                length = len(document.tokens)
                self._documents += 1
                self._tokens += length
                longest = max(longest, length)
                num_bytes += document.num_bytes
                held_out = [held_out[0] + document.split, held_out[1] + document.split * length]
            size, digest = part.close()
        return TaskRecord(
            key=head.key,
            definition=definition,
            documents=self._documents,
            documents_validation=held_out[0],
            tokens=self._tokens,
            tokens_validation=held_out[1],
            bytes=num_bytes,
            empty=empty,
            longest=longest,
            rejects=tuple(self._rejects),
            size_bytes=size,
            sha256=digest,
        )

    def _read(self, num_bytes: int, *, of: int) -> None:
        self._bytes = min(self._bytes + num_bytes, of)  # the last line may leave its task
        self._tell(self.seen())


def encode_document(document: Document, tokenizer: Tokenizer, *, held_out: float) -> Encoded:
    """Tokens, sizes and split of a document."""
    data = document.text.encode()
    return Encoded(
        uid=document.uid,
        source=document.source,
        record=document.record,
        split=split_of(data, held_out=held_out),
        num_bytes=len(data),
        num_chars=len(document.text),
        num_words=count_words(data),
        tokens=tokenizer.encode_utf8(data),
    )


def split_of(data: bytes, *, held_out: float) -> int:
    """0 (train) or 1 (validation) by the hash of a text, so that equal texts stay together."""
    draw = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
    return int(draw < held_out * 2**64)


def count_words(data: bytes) -> int:
    """Runs of bytes that are no ASCII blanks.

    Equals `len(data.split())` at a sixth of the time; `str.split` would hang on a Unicode table.
    """
    inside = np.frombuffer(data.translate(_IN_WORD), dtype=np.bool_)
    starts = int(np.count_nonzero(inside[1:] > inside[:-1]))
    return starts + int(inside[0]) if data else 0
