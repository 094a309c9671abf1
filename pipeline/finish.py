"""The records of all tasks -> rejects report, index and, last of all, the manifest."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from pipeline.commit import TaskRecord
from pipeline.corpus import NO_OFFSET, Reject
from pipeline.errors import DataError
from pipeline.examine import losses
from pipeline.files import (
    exists,
    join,
    list_folder,
    read_bytes,
    remove,
    remove_folder,
    remove_temporary,
    write_whole,
)
from pipeline.manifest import (
    BUILDING,
    DROPS,
    INDEX,
    MANIFEST,
    PARTS,
    REJECTS,
    TOKENIZER,
    FileEntry,
    Manifest,
    manifest_bytes,
)
from pipeline.part import Counts, Part, copied, dtype_for
from pipeline.reasons import DAMAGED, NOT_UTF8, SKIPPED
from pipeline.repeats import DROPPED, Dropped, Repeats, drop_list, without
from pipeline.settings import BuildSettings
from pipeline.store import repeated, write_index
from pipeline.tokenizer import Tokenizer

_SHOWN = 3  # rejects in a message
_DUPLICATES = 10  # named in the manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build made, for people and for `--json`.

    Attributes:
        documents: In both splits; likewise `tokens` (of text, EOD not counted) and `bytes`.
        empty: Documents without text, left out.
        cut: Texts longer than `max_document_tokens`; `pieces` documents came of them.
        dropped: Documents that repeated an earlier text and are in no split, if asked for.
        rejected: Bad records by reason; each is named in the store's rejects.jsonl.
        parts: Number of Arrow files.
        longest: Tokens of the longest document.
        duplicate_ids: Ids that stand at more than one document.
        ignored: Files in walked folders whose names are of no known kind.
        not_skipped: What was to be skipped, and no record bears.
        fingerprint: Of the store.
        loses: What the tokenizer does not give back of a text, in words; ours lose nothing.
    """

    documents: int
    documents_train: int
    documents_validation: int
    tokens: int
    tokens_train: int
    tokens_validation: int
    bytes: int
    empty: int
    cut: int
    pieces: int
    dropped: int
    rejected: dict[str, int]
    parts: int
    longest: int
    duplicate_ids: int
    ignored: tuple[str, ...]
    not_skipped: tuple[str, ...]
    vocab_size: int
    fingerprint: str
    loses: tuple[str, ...]


def finish(
    records: Sequence[TaskRecord],
    *,
    out: str,
    tokenizer: Tokenizer,
    settings: BuildSettings,
    inputs: Sequence[str],
    ignored: tuple[str, ...],
) -> BuildReport:
    """Judge the rejects, then write what stands beside the parts; the manifest comes last.

    Parts of an earlier corpus, which no record names, are removed just before it.

    Args:
        records: Of every task, in the order of the plan.
        out: The store.
        tokenizer: That encoded it.
        settings: Of the build.
        inputs: As the user gave them; for messages only.
        ignored: For the report only.

    Raises:
        DataError: Too many bad records, or no document at all.
    """
    rejects = [reject for record in records for reject in record.rejects]
    files = {TOKENIZER: tokenizer.model_bytes}
    if rejects:
        files[REJECTS] = b"".join(_line(reject) for reject in rejects)
        if not exists(join(out, MANIFEST)):  # readable even if the build fails over them
            write_whole(join(out, REJECTS), files[REJECTS])
    _judge(records, rejects, settings=settings, out=out, inputs=inputs)
    lengths, splits, num_bytes, duplicates, dropped = _columns(
        [join(out, record.entry.name) for record in records], dedup=settings.dedup == "exact"
    )
    if dropped:
        splits = without(splits, dropped)
        files[DROPS] = drop_list(dropped)
    files[INDEX] = write_index(lengths, splits)
    manifest = Manifest(
        vocab_size=tokenizer.vocab_size,
        bos=tokenizer.bos,
        eod=tokenizer.eod,
        dtype=dtype_for(tokenizer.vocab_size),
        held_out=settings.held_out,
        documents=len(lengths),
        tokens=sum(record.tokens for record in records),
        bytes=sum(record.bytes for record in records),
        empty=sum(record.empty for record in records),
        max_document_tokens=settings.max_document_tokens,
        cut=sum(record.cut for record in records),
        pieces=sum(record.pieces for record in records),
        dropped=len(dropped),
        rejected=_by_reason(records),
        duplicate_ids=len(duplicates),
        first_duplicates=dict(list(duplicates.items())[:_DUPLICATES]),
        parts=tuple(record.entry for record in records),
        files=tuple(
            FileEntry(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in files.items()
        ),
    ).sealed()
    _write(out, files, manifest)
    longest = max(record.longest for record in records)
    kept = splits != DROPPED
    return BuildReport(
        documents=int(kept.sum()),
        documents_train=int((splits == 0).sum()),
        documents_validation=int((splits == 1).sum()),
        tokens=int(lengths[kept].sum()),
        tokens_train=int(lengths[splits == 0].sum()),
        tokens_validation=int(lengths[splits == 1].sum()),
        bytes=int(num_bytes[kept].sum()),
        empty=manifest.empty,
        cut=manifest.cut,
        pieces=manifest.pieces,
        dropped=manifest.dropped,
        rejected=manifest.rejected,
        parts=len(manifest.parts),
        longest=longest,
        duplicate_ids=manifest.duplicate_ids,
        ignored=ignored,
        not_skipped=_not_skipped(rejects, settings.skip),
        vocab_size=manifest.vocab_size,
        fingerprint=manifest.fingerprint,
        loses=losses(tokenizer),
    )


def _not_skipped(rejects: Sequence[Reject], skip: Sequence[str]) -> tuple[str, ...]:
    """Entries of `skip` that name no record that was left out, by id (see `skipped`) or place."""
    ids = {reject.detail.removeprefix("id ") for reject in rejects if reject.reason == SKIPPED}
    left_out = ids | {f"{reject.source}:{reject.record}" for reject in rejects}
    return tuple(entry for entry in skip if entry not in left_out)


def _judge(
    records: Sequence[TaskRecord],
    rejects: Sequence[Reject],
    *,
    settings: BuildSettings,
    out: str,
    inputs: Sequence[str],
) -> None:
    documents = sum(record.documents for record in records)
    empty = sum(record.empty for record in records)
    damaged = [reject for reject in rejects if reject.reason == DAMAGED]
    bad = [reject for reject in rejects if reject.reason not in (DAMAGED, SKIPPED)]
    of = documents + empty + len(bad)
    if len(damaged) > settings.max_damaged:
        raise DataError(
            f"{len(damaged):,} damaged archives; --max-damaged allows {settings.max_damaged:,}. "
            f"{_first(damaged)}Fetch them again, or allow so many: what could be read is kept."
        )
    if not settings.bears(len(bad), of=of):
        raise DataError(
            f"{len(bad):,} of {of:,} records are bad, and --max-bad allows {settings.max_bad}. "
            f"{_first(bad)}{_encoding_hint(bad)}All are listed in {join(out, REJECTS)}. Repair "
            "them, or allow so many: the good ones are already built."
        )
    if not documents:
        raise DataError(
            f"The corpus is empty: no document in {', '.join(inputs)} ({empty:,} empty records, "
            f"{len(rejects):,} bad ones). {_first(rejects)}Check the path and --text-key."
        )


def _encoding_hint(bad: Sequence[Reject]) -> str:
    return "If the text is not UTF-8, name its --encoding. " if bad[0].reason == NOT_UTF8 else ""


def _first(rejects: Sequence[Reject]) -> str:
    named = [
        f"{r.place}: {r.reason}"
        + (f" at byte {r.offset:,}" if r.offset not in (r.record, NO_OFFSET) else "")
        + f" ({r.detail})"
        for r in rejects[:_SHOWN]
    ]
    return f"The first: {'; '.join(named)}. " if named else ""


def _line(reject: Reject) -> bytes:
    return (json.dumps(asdict(reject), sort_keys=True, ensure_ascii=False) + "\n").encode()


def _by_reason(records: Sequence[TaskRecord]) -> dict[str, int]:
    return dict(sum((record.rejected for record in records), Counter[str]()))


def _columns(
    urls: Sequence[str], *, dedup: bool
) -> tuple[Counts, npt.NDArray[np.uint8], Counts, dict[str, int], list[Dropped]]:
    """Length, split and bytes of every document, the ids that stand more than once, and repeats.

    One part is open at a time: a remote one lies in memory, and local mappings are few.
    """
    lengths, splits, sizes, uids = [], [], [], []
    repeats = Repeats()
    for url in urls:
        part = Part(url)
        lengths.append(part.num_tokens())
        splits.append(part.numbers("split").astype(np.uint8))
        sizes.append(part.numbers("num_bytes"))
        uids.append(copied(part.uids()))
        if dedup:
            repeats.add(part)
        del part  # before the next is opened
    return (
        np.concatenate(lengths),
        np.concatenate(splits),
        np.concatenate(sizes),
        repeated(uids),
        repeats.found,
    )


def _write(out: str, files: dict[str, bytes], manifest: Manifest) -> None:
    place = join(out, MANIFEST)
    if exists(place) and read_bytes(place) != manifest_bytes(manifest):
        remove(place)
    for name, data in files.items():
        write_whole(join(out, name), data)
    for name in {REJECTS, DROPS} - set(files):
        remove(join(out, name))
    parts = join(out, PARTS)
    remove_temporary(parts)  # of builders that were killed meanwhile
    ours = {f"{part.key}.{kind}" for part in manifest.parts for kind in ("arrow", "json")}
    for name in set(list_folder(parts)) - ours:
        remove(join(parts, name))
    remove_folder(join(out, BUILDING))  # from here on the manifest speaks
    write_whole(place, manifest_bytes(manifest))
