"""Who reads held-out documents: this process alone, or workers of a Ray that is started for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from jobs.entry import raise_on_sigterm
from jobs.find import Found
from pipeline.store import Store
from trainer.errors import ConfigError
from trainer.room import free_bytes
from trainer.scorer import Scorer, ScorerPlan

if TYPE_CHECKING:
    from trainer.scorer_actor import Scorers

Crew: TypeAlias = "Scorer | Scorers"

WORKER_BYTES = 400 << 20  # of a process with torch and Ray, before it holds a model


@contextmanager
def crew(found: Found, store: Store, *, workers: int) -> Iterator[Crew]:
    """Those who read, for the `with` block.

    Args:
        found: The model, as it is to be evaluated.
        store: Its held-out documents.
        workers: Processes; 0 takes one a GPU, and this process where there is none or one.

    Raises:
        ConfigError: There are too few rows for the workers, or too little memory.
    """
    rows, gpus = found.loaded.layout.rows, torch.cuda.device_count()
    count = workers or max(1, min(gpus, rows))
    if count > rows:
        raise ConfigError(
            f"--workers {count:,} share {rows:,} rows, and each wants one at least. Lower "
            "--workers, or raise --rows."
        )
    if count == 1:
        yield Scorer(lambda: (found.loaded.model, store))
        return
    free = free_bytes(torch.device("cpu"))
    if free is not None and count * WORKER_BYTES > free:
        raise ConfigError(
            f"--workers {count:,} take {count * WORKER_BYTES >> 30:,} GiB of memory at least, and "
            f"{free >> 30:,} GiB are free. Lower --workers."
        )
    from jobs.cluster import cores, local_ray  # Ray is seconds to import
    from trainer.scorer_actor import scorers

    on_gpu = count <= gpus
    plan = ScorerPlan(
        path=str(found.path),
        store=store.url if "://" in store.url else str(Path(store.url).resolve()),
        clamp_len=found.loaded.model.config.clamp_len,
        same_length=found.loaded.model.config.same_length,
        device="cuda" if on_gpu else "cpu",
        threads=max(1, cores() // count),
        sharing=1 if on_gpu else count,
    )
    with local_ray(num_cpus=max(cores(), count)):  # more workers than cores are slow, not wrong
        raise_on_sigterm()  # Ray has put its own handler there
        with scorers(plan, workers=count) as many:
            yield many
