"""How far a build is: frozen numbers, and the functions that move them on."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipeline.commit import TaskRecord
from pipeline.corpus import Plan, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How far a builder is in the task it has, and what it has taken so far.

    Attributes:
        builder: Its number, from 0.
        task: Name of its task; empty between two.
        documents: Of the task; likewise tokens and rejected.
        bytes: Of the task, on disk.
        cpu_s: Of its process, in tasks; all of them.
        peak_bytes: The most memory its process ever held.
    """

    builder: int = 0
    task: str = ""
    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    rejected: int = 0
    cpu_s: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """How far a build is. Bytes are those on disk, the only ones known beforehand.

    `builders` are those that have been heard of, by number.
    """

    tasks_done: int = 0
    tasks: int
    bytes_done: int = 0
    bytes: int
    documents: int = 0
    tokens: int = 0
    rejected: int = 0
    builders: tuple[Seen, ...] = ()


def at_start(plan: Plan) -> BuildProgress:
    """The progress before the first task."""
    return BuildProgress(tasks=len(plan.tasks), bytes=plan.num_bytes)


def after(progress: BuildProgress, task: Task, record: TaskRecord) -> BuildProgress:
    """The progress with one more task done."""
    return replace(
        progress,
        tasks_done=progress.tasks_done + 1,
        bytes_done=progress.bytes_done + task.num_bytes,
        documents=progress.documents + record.documents,
        tokens=progress.tokens + record.tokens,
        rejected=progress.rejected + len(record.rejects),
    )


def during(progress: BuildProgress, seen: Iterable[Seen]) -> BuildProgress:
    """The progress with what is under way on top."""
    under_way = sorted(seen, key=lambda s: s.builder)
    return replace(
        progress,
        bytes_done=progress.bytes_done + sum(s.bytes for s in under_way),
        documents=progress.documents + sum(s.documents for s in under_way),
        tokens=progress.tokens + sum(s.tokens for s in under_way),
        rejected=progress.rejected + sum(s.rejected for s in under_way),
        builders=tuple(under_way),
    )


def without_task(seen: Seen) -> Seen:
    """What stays true of a builder once its task has ended and is counted elsewhere."""
    return Seen(builder=seen.builder, cpu_s=seen.cpu_s, peak_bytes=seen.peak_bytes)
