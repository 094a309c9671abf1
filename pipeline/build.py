"""A corpus and a tokenizer -> a store, task by task; a build cut short goes on where it was.

A part's bytes are a function of its task alone, so it does not matter who builds it, when, or how
often: a task that has its record is done, any other is done again.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.build_lock import LOCK, alone_in
from pipeline.builder import Builder
from pipeline.commit import TaskRecord
from pipeline.corpus import Plan, plan_tasks, with_skips
from pipeline.errors import DataError
from pipeline.files import is_temporary, join, list_folder, local_path, remove_temporary
from pipeline.finish import BuildReport, finish
from pipeline.manifest import BUILDING, DROPS, INDEX, MANIFEST, PARTS, REJECTS, TOKENIZER
from pipeline.progress import BuildProgress, Seen, after, at_start, during
from pipeline.publish import BuildHead, Publisher, head_of
from pipeline.settings import BuildSettings
from pipeline.tokenizer import Tokenizer

_OURS = {MANIFEST, TOKENIZER, INDEX, REJECTS, DROPS, PARTS, BUILDING, LOCK}
_PART_NAME = re.compile(r"[0-9a-f]{32}\.(arrow|json)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A build that may start: all that can be wrong before it has been looked at."""

    inputs: tuple[str, ...]
    plan: Plan
    tokenizer: Tokenizer
    out: str
    settings: BuildSettings

    @property
    def head(self) -> BuildHead:
        """What readers of the growing store are told."""
        return head_of(self.plan, self.tokenizer, self.settings)


def build_store(
    inputs: Sequence[str],
    *,
    tokenizer: str,
    out: str,
    settings: BuildSettings | None = None,
    progress: Callable[[BuildProgress], None] = lambda _: None,
    publisher: Publisher | None = None,
) -> BuildReport:
    """Build a store in this process.

    Args:
        inputs: Files, folders, globs, URLs.
        tokenizer: Path or URL of a tokenizer file; it is copied into the store.
        out: Folder or URL of the store; may hold an earlier build of it, whole or not.
        settings: How.
        progress: Called after each task and about once per megabyte read.
        publisher: Told of the plan and of each task, for those who read along.

    Raises:
        DataError: The corpus, the tokenizer or the folder cannot be used, or too much of the
            corpus is bad. The parts that were committed stay, and a rerun uses them.
    """
    job = prepare(inputs, tokenizer=tokenizer, out=out, settings=settings or BuildSettings())
    with alone_in(out) as check:
        records = _build(job, progress=progress, publisher=publisher)
        check()
        return seal(job, records)


def _build(
    job: Job, *, progress: Callable[[BuildProgress], None], publisher: Publisher | None
) -> list[TaskRecord]:
    if publisher:
        publisher.begin(job.head, job.tokenizer)
    done = at_start(job.plan)
    records: list[TaskRecord] = []

    def tell(seen: Seen) -> None:
        progress(during(done, [seen]))

    builder = Builder(tokenizer=job.tokenizer, out=job.out, settings=job.settings, tell=tell)
    for index, task in enumerate(job.plan.tasks):
        record = builder.build(task)
        if publisher:
            publisher.committed(index, record)
        records.append(record)
        done = after(done, task, record)
        progress(done)
    return records


def prepare(inputs: Sequence[str], *, tokenizer: str, out: str, settings: BuildSettings) -> Job:
    """Look at everything that could stop a build, plan it, and sweep what killed builds left.

    Raises:
        DataError: As `build_store`; nothing has been written then.
    """
    loaded = Tokenizer.load(tokenizer)
    plan = plan_tasks(inputs, task_bytes=settings.task_bytes, options=settings.options)
    plan = with_skips(plan, settings.skip)
    for name in sorted(list_folder(out)):
        if name not in _OURS and not is_temporary(name):
            raise DataError(
                f"{out} holds {name!r}, which belongs to no store. Give --out a folder of its own."
            )
    for name in sorted(list_folder(join(out, PARTS))):
        if not _PART_NAME.fullmatch(name) and not is_temporary(name):
            raise DataError(
                f"{join(out, PARTS, name)} is foreign: no build writes such a name. Move it away."
            )
    if local_path(out) is not None and list_folder(out):
        with alone_in(out):  # a build that lives is still writing what looks like a leftover
            remove_temporary(out)
            remove_temporary(join(out, PARTS))
    return Job(inputs=tuple(inputs), plan=plan, tokenizer=loaded, out=out, settings=settings)


def seal(job: Job, records: Sequence[TaskRecord]) -> BuildReport:
    """Finish a store once every task has its record."""
    return finish(
        records,
        out=job.out,
        tokenizer=job.tokenizer,
        settings=job.settings,
        inputs=job.inputs,
        ignored=job.plan.ignored,
    )
