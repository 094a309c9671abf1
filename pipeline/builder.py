"""One task -> one part and its commit record. Plain Python; build_actor.py puts it behind Ray."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import mul

from pipeline.commit import TaskRecord, define, find_record, key_of, record_bytes
from pipeline.corpus import Document, Reject, Task, skipped
from pipeline.encode import BATCH_CHARS, HOT, Ready, encode_documents, prepare_texts
from pipeline.errors import DataError
from pipeline.files import exists, join, remove, sha256_of, write_whole
from pipeline.heap import keep_freed, most_host_memory_bytes
from pipeline.manifest import MANIFEST, PARTS, read_manifest
from pipeline.part import PartHead, PartWriter, dtype_for, writing_part
from pipeline.progress import Seen
from pipeline.records import Held, hold, read_task
from pipeline.settings import BuildSettings
from pipeline.tokenizer import Tokenizer

_COUNTS = (
    "documents_validation",
    "tokens_validation",
    "bytes",
    "empty",
    "longest",
    "cut",
    "pieces",
)


class Builder:
    """Does one task at a time and can be asked meanwhile how far it is."""

    def __init__(
        self,
        *,
        tokenizer: bytes | Tokenizer,
        out: str,
        settings: BuildSettings,
        tell: Callable[[Seen], None] = lambda _: None,
    ) -> None:
        made = isinstance(tokenizer, Tokenizer)
        self._tokenizer = tokenizer if made else Tokenizer.from_bytes(tokenizer)
        self._out = out
        self._settings = settings
        self._tell = tell
        self._covered: frozenset[str] | None = None  # sha256 of the parts a manifest speaks for
        self._task: Task | None = None
        self._documents = self._tokens = self._bytes = 0
        self._rejects: list[Reject] = []
        self._cpu_s = 0.0
        self._began_s: float | None = None

    def seen(self) -> Seen:
        """How far the task is."""
        began_s = self._began_s  # another thread may end the task meanwhile
        running_s = 0.0 if began_s is None else time.process_time() - began_s
        return Seen(
            task=str(self._task or ""),
            cpu_s=self._cpu_s + running_s,
            peak_bytes=most_host_memory_bytes(),
            documents=self._documents,
            tokens=self._tokens,
            bytes=self._bytes,
            rejected=len(self._rejects),
        )

    def build(self, task: Task) -> TaskRecord:
        """Commit a task: its part, then its record. One that was committed is only looked up.

        Where no manifest speaks for its part yet, that is hashed too: a build was cut short, and
        nobody has looked at what the disk kept of it.

        Raises:
            DataError: A file changed while it was read, or the tokenizer gives wrong ids.
            OSError: The disk refused; no part and no record of the task is there.
        """
        self._task = task
        self._documents = self._tokens = self._bytes = 0
        self._rejects = []
        self._began_s = time.process_time()
        try:
            return self._commit(task)
        finally:
            self._cpu_s += time.process_time() - self._began_s
            self._began_s = None  # the task stays: its end is not yet known to who asks

    def _commit(self, task: Task) -> TaskRecord:
        held = hold(task)
        definition = define(
            task, held.identity, tokenizer=self._tokenizer.sha256, settings=self._settings
        )
        head = PartHead(
            key=key_of(definition),
            tokenizer=self._tokenizer.sha256,
            vocab_size=self._tokenizer.vocab_size,
            eod=self._tokenizer.eod,
            dtype=dtype_for(self._tokenizer.vocab_size),
        )
        if self._covered is None:  # before this builder removes the manifest
            self._covered = _covered(self._out)
        record = find_record(self._out, head)
        if record is None or not self._is_whole(record):
            if exists(join(self._out, MANIFEST)):
                remove(join(self._out, MANIFEST))  # the store is no longer what it says
            # Each batch takes as much again, and new pages cost 4 %.
            keep_freed(block_bytes=32 << 20, spare_bytes=256 << 20)
            with _no_collector():
                record = self._write(task, held, definition, head)
            write_whole(join(self._out, PARTS, f"{head.key}.json"), record_bytes(record))
        return record

    def _is_whole(self, record: TaskRecord) -> bool:
        if self._covered and record.sha256 in self._covered:
            return True
        return sha256_of(join(self._out, PARTS, f"{record.key}.arrow")) == record.sha256

    def _write(
        self, task: Task, held: Held, definition: dict[str, object], head: PartHead
    ) -> TaskRecord:
        sources = list(dict.fromkeys(extent.source for extent in task.extents))
        counts: dict[str, int] = dict.fromkeys(_COUNTS, 0)
        with writing_part(join(self._out, PARTS, f"{head.key}.arrow"), head, sources) as part:
            fresh: list[Document] = []
            waiting: list[Ready] = []
            size = 0
            for item in read_task(task, held=held, watch=partial(self._read, of=task.num_bytes)):
                if isinstance(item, Reject):
                    self._rejects.append(item)
                elif task.skip and {item.uid, f"{item.source}:{item.record}"} & set(task.skip):
                    self._rejects.append(skipped(item))
                elif not item.text:
                    counts["empty"] += 1
                else:
                    fresh.append(item)
                    size += len(item.text)
                    if len(fresh) == HOT or size >= BATCH_CHARS:
                        waiting += prepare_texts(fresh, held_out=self._settings.held_out)
                        fresh = []
                if size >= BATCH_CHARS:
                    self._add(waiting, part, counts)
                    waiting, size = [], 0
            waiting += prepare_texts(fresh, held_out=self._settings.held_out)
            self._add(waiting, part, counts)
            size_bytes, digest = part.close()
        return TaskRecord(
            key=head.key,
            definition=definition,
            documents=self._documents,
            tokens=self._tokens,
            rejects=tuple(self._rejects),
            size_bytes=size_bytes,
            sha256=digest,
            **counts,
        )

    def _add(self, texts: list[Ready], part: PartWriter, counts: dict[str, int]) -> None:
        if not texts:
            return
        encoded = encode_documents(texts, self._tokenizer, self._settings)
        cut = [documents for documents in encoded if len(documents) > 1]
        documents = [document for found in encoded for document in found]
        part.add(documents)
        _, _, _, splits, sizes, *_, tokens = zip(*documents, strict=True)
        lengths = list(map(len, tokens))
        self._documents += len(documents)
        self._tokens += sum(lengths)
        counts["cut"] += len(cut)
        counts["pieces"] += sum(map(len, cut))
        counts["bytes"] += sum(sizes)
        counts["longest"] = max(counts["longest"], *lengths)
        counts["documents_validation"] += sum(splits)
        counts["tokens_validation"] += sum(map(mul, splits, lengths))

    def _read(self, num_bytes: int, *, of: int) -> None:
        self._bytes = min(self._bytes + num_bytes, of)  # the last line may leave its task
        self._tell(self.seen())


def _covered(out: str) -> frozenset[str]:
    """sha256 of the parts that a manifest names: who opens the store holds them against it."""
    try:
        return frozenset(part.sha256 for part in read_manifest(out).parts)
    except DataError:  # there is none, or none that can be believed
        return frozenset()


@contextmanager
def _no_collector() -> Iterator[None]:
    """Python's search for cycles stands still: a task makes none, and looking takes 1.5 %."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
