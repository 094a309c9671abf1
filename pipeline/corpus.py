"""Files of a corpus -> tasks of bounded size. What they hold is read by records.py.

The plan is a function of names, sizes and first bytes alone. A task is cut where bytes say so, and
a record is known by where it begins: nobody has to count the lines before it.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.archives import Packing
from pipeline.columns import group_starts
from pipeline.errors import DataError
from pipeline.forms import TABLES, Form, form_of, is_corpus
from pipeline.inputs import InputFile, list_inputs
from pipeline.reasons import SKIPPED

NO_OFFSET = -1  # a table has rows and no bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How records are read.

    Attributes:
        text_key: Key of the text in a JSON record; dots lead into nested objects.
        id_key: Key of the document's id there; a record without it is named by its place.
        max_record_bytes: A longer record is rejected; bounds the memory a broken file can take.
        encoding: Of text files. Places in one that is not UTF-8 count its bytes turned into UTF-8.
        newlines: `lf` turns CR LF in a text into LF.
        separator: What stands between two documents of a text file; empty: a file is a document.
    """

    text_key: str = "text"
    id_key: str = "id"
    max_record_bytes: int = 1 << 30
    encoding: str = "utf-8"
    newlines: str = "keep"
    separator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text of the corpus.

    Attributes:
        uid: The corpus's own id, else source and record.
        source: Name of its file.
        record: Byte of the (unpacked) file where it begins, or row of a table; no other in the
            source has it.
        text: As it stands there, nothing normalised.
    """

    uid: str
    source: str
    record: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A record that cannot be a document.

    Attributes:
        source: Name of its file.
        record: Byte of the (unpacked) file where it begins, or row of a table.
        offset: Byte of the (unpacked) file where the fault lies, as near as is known; -1 in a
            table (Parquet, Arrow).
        reason: One of few, counted by it.
        detail: What was found there.
    """

    source: str
    record: int
    offset: int
    reason: str
    detail: str

    @property
    def place(self) -> str:
        """Where the record is, in words."""
        kind = "row" if self.offset == NO_OFFSET else "record at byte"
        return f"{self.source}, {kind} {self.record:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A stretch of one file: the records that begin in it.

    Attributes:
        source: Name of the file.
        url: Where it is read; stands in no file of a store.
        start: First byte on disk.
        end: Byte after the last; a record (of a table: a row group or batch) that begins before it
            is read to its own end.
    """

    source: str
    url: str
    form: Form
    packing: Packing
    start: int
    end: int

    def mark(self, options: SourceOptions) -> bytes:
        """What ends a record where a stretch of bytes is read by itself; empty if it can not be."""
        if self.packing != "plain" or options.encoding != "utf-8":
            return b""
        if self.form == "jsonl":
            return b"\n"
        return options.separator.encode() if self.form == "txt" else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one actor reads and one part holds: stretches of files, several when they are small."""

    extents: tuple[Extent, ...]
    options: SourceOptions
    skip: tuple[str, ...] = ()  # records that are left out, by id or as source:record

    @property
    def num_bytes(self) -> int:
        return sum(extent.end - extent.start for extent in self.extents)

    def __str__(self) -> str:
        first = self.extents[0]
        more = f" and {len(self.extents) - 1} more files" if len(self.extents) > 1 else ""
        return f"{first.source} (bytes {first.start:,} to {first.end:,}){more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The tasks of a corpus, and the files in walked folders whose names are of no known kind."""

    tasks: tuple[Task, ...]
    ignored: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        return sum(task.num_bytes for task in self.tasks)


def skipped(document: Document) -> Reject:
    """The line in the report of a record that the user left out."""
    return Reject(
        source=document.source,
        record=document.record,
        offset=document.record,
        reason=SKIPPED,
        detail=f"id {document.uid}",
    )


def with_skips(plan: Plan, skip: Sequence[str]) -> Plan:
    """Tell each task which of its records are left out.

    A place (SOURCE:RECORD) concerns the tasks that hold it and changes no other part; an id may
    stand anywhere, and so changes all.
    """
    sources = {extent.source for task in plan.tasks for extent in task.extents}
    places = {entry: entry.rpartition(":") for entry in skip}
    ids = {e for e, (source, _, n) in places.items() if source not in sources or not n.isdigit()}

    def concerns(task: Task, entry: str) -> bool:
        source, _, number = places[entry]
        return entry in ids or any(
            extent.source == source
            and (not extent.mark(task.options) or extent.start <= int(number) < extent.end)
            for extent in task.extents
        )

    tasks = tuple(
        replace(task, skip=tuple(sorted(e for e in set(skip) if concerns(task, e))))
        for task in plan.tasks
    )
    return replace(plan, tasks=tasks)


def plan_tasks(
    inputs: Sequence[str], *, task_bytes: int, options: SourceOptions | None = None
) -> Plan:
    """Cut a corpus into tasks of about `task_bytes` bytes on disk, in the order of names.

    A large plain jsonl file (or text file with a separator) is cut at multiples of `task_bytes`, a
    table between its row groups or batches; other files are one stretch each.
    Small stretches share a task, and which file ends one hangs on its own name and size: a file
    added or removed moves the borders near it and no others.

    Raises:
        DataError: An input is missing, matches nothing or is of no kind that can be read.
    """
    options = options or SourceOptions()
    files = list_inputs(inputs)
    used = {
        file.name: file
        for file in files
        if file.asked
        or is_corpus(file.url, file.name, text_key=options.text_key, encoding=options.encoding)
    }
    if not used:
        raise DataError(
            f"No file of a corpus in {', '.join(inputs)}: {len(files)} files there, none of them "
            "called .jsonl, .parquet, .txt or the like (a .json, .csv or .tsv must have "
            f"{options.text_key!r}). Name the files themselves to take them all."
        )
    stretches = [extent for file in used.values() for extent in _extents(file, task_bytes, options)]
    groups = _grouped(stretches, task_bytes)
    return Plan(
        tasks=tuple(Task(extents=tuple(group), options=options) for group in groups),
        ignored=tuple(file.name for file in files if file.name not in used),
    )


def _extents(file: InputFile, task_bytes: int, options: SourceOptions) -> Iterator[Extent]:
    form, packing = form_of(file.url, text_key=options.text_key, encoding=options.encoding)
    whole = Extent(
        source=file.name, url=file.url, form=form, packing=packing, start=0, end=file.size
    )
    if form in TABLES:
        groups = group_starts(file.url, form, text_key=options.text_key)
        starts = _spaced(groups, task_bytes)
    elif whole.mark(options):
        starts = list(range(0, max(file.size, 1), task_bytes))
    else:
        starts = [0]
    for start, end in itertools.pairwise([*starts, file.size]):
        yield replace(whole, start=start, end=end)


def _spaced(places: list[int], least: int) -> list[int]:
    """0 and of the other places those that lie at least so far from the one before."""
    kept = [0]
    for place in places:
        if place - kept[-1] >= least:
            kept.append(place)
    return kept


def _grouped(extents: list[Extent], task_bytes: int) -> Iterator[list[Extent]]:
    group: list[Extent] = []
    size = 0
    for extent in extents:
        length = extent.end - extent.start
        if group and size + length > task_bytes:
            yield group
            group, size = [], 0
        group.append(extent)
        size += length
        if _draw(extent.source) * task_bytes < 2 * length:  # half a task's size, on average
            yield group
            group, size = [], 0
    if group:
        yield group


def _draw(name: str) -> float:
    """A number in [0, 1) that belongs to a name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
