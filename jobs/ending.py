"""How a run ends: what stays in its folder and in MLflow, the exit code, the last sentence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from jobs.config import RunConfig
from jobs.entry import Exit
from jobs.samples import write_samples
from jobs.track import Track
from pipeline.growing import GrowingStore
from pipeline.store import Store
from trainer.board import Verdict
from trainer.run_folder import RunFolder
from trainer.summary import Summary, read_scores

OVERTAKEN = "overtaken"
CODES = {"config": Exit.BAD_USE, "data": Exit.BAD_DATA, OVERTAKEN: Exit.BAD_USE}


def keep_all(
    config: RunConfig,
    folder: RunFolder,
    store: Store | GrowingStore,
    tracked: Track,
    summary: Summary,
    *,
    status: str,
    say: Callable[[str], None],
) -> None:
    """Write summary.json, the pictures and the samples, and hand them to MLflow.

    What the disk refuses is named: none of them is worth the end of a run.
    """
    from trainer.pictures import loss_by_offset, loss_over_steps

    named = partial(_named, folder, say)
    told = {"status": status, "of": config.trainer.steps}  # `longrow runs` reads them
    with named("summary.json"):
        folder.write_json("summary.json", summary.to_json() | told)
        tracked.file(folder.path / "summary.json")
    lines = list(folder.lines())
    name = config.run.name
    of_steps, of_offsets = folder.path / "loss.png", folder.path / "loss_by_offset.png"
    if any(line["kind"] == "step" for line in lines):
        with named(of_steps.name):
            loss_over_steps(lines, of_steps, title=f"{name}: loss")
            folder.put_up(of_steps)
            tracked.file(of_steps, "pictures")
    if scores := read_scores(folder):
        title = f"{name}: held-out loss by offset, step {scores[0].step}"
        with named(of_offsets.name):
            loss_by_offset(scores, of_offsets, title=title)
            folder.put_up(of_offsets)
            tracked.file(of_offsets, "pictures")
    if status == "done" and isinstance(store, Store):
        with named("samples"):
            write_samples(folder, store, tracked)


@contextmanager
def _named(folder: RunFolder, say: Callable[[str], None], what: str) -> Iterator[None]:
    """Say that the disk refused it, and how it is written after all."""
    try:
        yield
    except OSError as error:
        say(
            f"{folder.place} has no new {what}: {error}. Make room there; `longrow resume "
            f"{folder.place}` writes it."
        )


def code_of(verdict: Verdict) -> Exit:
    """The exit code of a verdict."""
    if verdict.status == "done":
        return Exit.DONE
    if verdict.status == "stopped":  # the reason is one and the same on all ranks
        interrupted = verdict.reason.startswith("SIGINT")
        return Exit.INTERRUPTED if interrupted else Exit.TERMINATED
    return CODES.get(verdict.kind, Exit.FAILED)


def message_of(verdict: Verdict, folder: RunFolder) -> str:
    """What to say of a run that did not come to its end; empty of one that did."""
    if verdict.status == "done":
        return ""
    if verdict.status == "stopped":
        if not any(folder.checkpoints.iterdir()):
            return f"Stopped ({verdict.reason}), before the first step. The same command begins it."
        return (
            f"Stopped after step {verdict.step} ({verdict.reason}); a checkpoint of it is in "
            f"{folder.named(str(folder.checkpoints))}. `longrow resume {folder.place}` goes on "
            "from there."
        )
    return verdict.reason
