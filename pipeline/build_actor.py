"""The build behind Ray: actors take tasks, and a task outlives its actor."""

import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from pipeline.build import Job, prepare, seal
from pipeline.build_lock import alone_in
from pipeline.builder import Builder
from pipeline.commit import TaskRecord
from pipeline.corpus import Task
from pipeline.errors import DataError
from pipeline.finish import BuildReport
from pipeline.progress import BuildProgress, Seen, after, at_start, during, without_task
from pipeline.publish import Publisher
from pipeline.settings import BuildSettings, SettingsError

TRIES = 3  # deaths of its actor that a task gets
_LOOK_S = 0.5  # seconds between two progress reports while no task ends
_LAST_S = 10.0  # that the last report waits for actors, which are idle then
_DEATHS = (RayActorError, OutOfMemoryError, WorkerCrashedError)


@ray.remote
class BuilderActor:
    """Builder behind Ray."""

    def __init__(
        self, *, tokenizer: bytes, out: str, settings: BuildSettings, nice: int = 0
    ) -> None:
        os.nice(nice)
        self._builder = Builder(tokenizer=tokenizer, out=out, settings=settings)

    @ray.method
    def build(self, task: Task) -> TaskRecord:
        return self._builder.build(task)

    @ray.method
    def seen(self) -> Seen:
        return self._builder.seen()


def build_store_with_actors(  # noqa: PLR0913 - each is a value of its own
    inputs: Sequence[str],
    *,
    tokenizer: str,
    out: str,
    workers: int,
    num_cpus: float = 0,
    settings: BuildSettings | None = None,
    progress: Callable[[BuildProgress], None] = lambda _: None,
    publisher: Publisher | None = None,
    nice: int = 0,
) -> BuildReport:
    """Build a store in actors of a Ray that is already there: byte for byte that of `build_store`.

    Args:
        inputs: Files, folders, globs, URLs that every actor can reach.
        tokenizer: Path or URL of a tokenizer file; only the driver reads it.
        out: Folder or URL of the store that every actor can reach.
        workers: Actors at a time.
        num_cpus: CPU slots that each takes; 0 works beside a training.
        settings: How.
        progress: Called after each task and twice a second; what it raises ends the build.
        publisher: As `build_store`.
        nice: How far the actors stand back behind other processes of their machine, 0 to 19.

    Raises:
        DataError: As `build_store`, or a task ended its actor three times.
        SettingsError: No actor is asked for.
    """
    if workers < 1:
        raise SettingsError(f"workers = {workers} must be at least 1.")
    job = prepare(inputs, tokenizer=tokenizer, out=out, settings=settings or BuildSettings())
    with alone_in(out) as check:
        if publisher:
            publisher.begin(job.head, job.tokenizer)
        crew = _Crew(job, num_cpus=num_cpus, nice=nice)
        try:
            records = _run(job, crew, workers=workers, progress=progress, publisher=publisher)
        finally:
            crew.dismiss()
        check()
        return seal(job, records)


def _run(
    job: Job,
    crew: "_Crew",
    *,
    workers: int,
    progress: Callable[[BuildProgress], None],
    publisher: Publisher | None,
) -> list[TaskRecord]:
    tasks = job.plan.tasks
    waiting = deque(range(len(tasks)))
    deaths: Counter[int] = Counter()
    records: dict[int, TaskRecord] = {}
    running: dict[Any, tuple[int, Any]] = {}  # reference -> (task, actor)
    done = at_start(job.plan)
    while waiting or running:
        while waiting and len(running) < workers:
            index, actor = waiting.popleft(), crew.hire()
            running[actor.build.remote(tasks[index])] = index, actor
        at_work = {str(tasks[index]) for index, _ in running.values()}
        progress(during(done, crew.seen(at_work)))  # all are at work: nobody waits for an answer
        ended, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
        for reference in ended:
            index, actor = running.pop(reference)
            try:
                records[index] = ray.get(reference)
            except RayTaskError as error:
                raise error.cause from None
            except _DEATHS as error:
                crew.bury(actor)
                deaths[index] += 1
                if deaths[index] == TRIES:
                    raise DataError(
                        f"{tasks[index]} ended its builder {TRIES} times ({type(error).__name__}). "
                        "Look at that input and at the memory of the machine; what is done stays "
                        "done, and a rerun goes on from there."
                    ) from error
                waiting.appendleft(index)
            else:
                crew.release(actor)
                if publisher:
                    publisher.committed(index, records[index])
                done = after(done, tasks[index], records[index])
    progress(during(done, crew.seen(set(), timeout_s=_LAST_S)))
    return [records[index] for index in range(len(tasks))]


class _Crew:
    """The actors of a build; none outlives it."""

    def __init__(self, job: Job, *, num_cpus: float, nice: int) -> None:
        # two calls at a time: one builds, one answers
        make = BuilderActor.options(num_cpus=num_cpus, max_concurrency=2)
        self._make = lambda: make.remote(
            tokenizer=job.tokenizer.model_bytes, out=job.out, settings=job.settings, nice=nice
        )
        self._all: list[Any] = []
        self._numbers: dict[Any, int] = {}  # of the dead too: a number stays one actor's
        self._idle: list[Any] = []

    def hire(self) -> Any:
        if self._idle:
            return self._idle.pop()
        self._all.append(self._make())
        self._numbers[self._all[-1]] = len(self._numbers)
        return self._all[-1]

    def release(self, actor: Any) -> None:
        self._idle.append(actor)

    def bury(self, actor: Any) -> None:
        self._all.remove(actor)
        ray.kill(actor)

    def seen(self, tasks: set[str], *, timeout_s: float = 1.0) -> list[Seen]:
        """What the actors say of themselves; one that is slow or dead says nothing.

        What they have done counts only for `tasks`: those that are not yet known to have ended.
        """
        asked = {actor.seen.remote(): self._numbers[actor] for actor in self._all}
        every = list(asked)
        waited = ray.wait(every, num_returns=len(every), timeout=timeout_s)[0] if every else []
        said: list[Seen] = []
        for reference in waited:
            try:
                seen = replace(ray.get(reference), builder=asked[reference])
            except RayError:
                continue  # its task says what happened
            said.append(seen if seen.task in tasks else without_task(seen))
        return said

    def dismiss(self) -> None:
        """End every actor and wait until they are gone."""
        for actor in self._all:
            ray.kill(actor)
        asked = [actor.seen.remote() for actor in self._all]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=10)
