"""`longrow runs`: what runs there are, and an end in MLflow for those that died without one."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from jobs.entry import Exit, Job, Outcome, run
from jobs.visible import echo

if TYPE_CHECKING:
    from trainer.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A run as its folder tells it.

    Attributes:
        name: Its folder.
        step: Steps done.
        of: Steps it was to take.
        attempts: Starts of its workers.
        status: "running", "done", "damaged", or "stopped", be it by somebody or by a death.
    """

    name: str
    step: int
    of: int
    attempts: int
    status: str


@click.command("runs", cls=Job)
@click.argument("action", type=click.Choice(["list", "reap"]))
@click.option(
    "--folder",
    default="runs",
    show_default=True,
    help="Where the runs are.",
)
@click.option(
    "--silent-s",
    type=float,
    default=600.0,
    show_default=True,
    help="Seconds without a sign of life after which a run counts as ended.",
)
def command(action: str, folder: str, silent_s: float) -> Outcome:
    """List the runs in a folder, or mark those that died as KILLED in MLflow.

    A run that trains leaves a sign of life in its folder every few seconds. One that was ended by
    SIGKILL, or with its machine, stays RUNNING in MLflow: `reap` puts that right. One that was done
    while MLflow was away is FINISHED.
    """
    found = _runs_in(folder)
    seen = [look(one, now=time.time(), silent_s=silent_s) for one in found]
    if action == "list":
        for one in seen:
            echo(
                f"{one.name:<24} {one.status:<8} step {one.step:,} of {one.of:,}, "
                f"attempts {one.attempts}"
            )
        return Outcome(facts={"runs": [asdict(one) for one in seen]})
    reaped: list[str] = []
    failed: list[str] = []
    for one, told in zip(found, seen, strict=True):
        try:
            end = "FINISHED" if told.status == "done" else "KILLED"
            if told.status != "running" and _reap(one, status=end):
                reaped.append(told.name)
                echo(f"{told.name} was RUNNING in MLflow without life: it is {end} now.")
        except ValueError as error:  # one record that is away must not keep the others waiting
            failed.append(told.name)
            echo(f"{told.name}: {error}", err=True)
    if not reaped and not failed:
        echo(f"No run in {folder} was RUNNING in MLflow without life.")
    code = Exit.FAILED if failed else Exit.DONE
    return Outcome(facts={"reaped": reaped, "failed": failed}, code=code)


def look(folder: "RunFolder", *, now: float, silent_s: float) -> Seen:
    """Look at a run; `now` in seconds since 1970, as the files of its folder have it."""
    beat = folder.last_beat()
    alive = beat is not None and now - beat <= silent_s
    try:
        of = int((folder.read_json("config.json") or {})["trainer"]["steps"])
        step = max((line["step"] for line in folder.lines() if line["kind"] == "step"), default=0)
        attempts = len(folder.attempts())
        end = folder.read_json("summary.json") or {}
    except (ValueError, KeyError, TypeError):  # `longrow show` says what is wrong with it
        return Seen(name=folder.path.name, step=0, of=0, attempts=0, status="damaged")
    return Seen(
        name=folder.path.name,
        step=step,
        of=of,
        attempts=attempts,
        status="running" if alive else "done" if _is_done(end, step=step, of=of) else "stopped",
    )


def _is_done(end: Mapping[str, Any], *, step: int, of: int) -> bool:
    """Whether the run came to its end, by evaluate.patience too; not an end before it went on."""
    return (end.get("status"), end.get("steps"), end.get("of")) == ("done", step, of)


def _runs_in(folder: str) -> "list[RunFolder]":
    """The runs in a folder, or below a URL, by name."""
    from pipeline.files import exists, join, list_folder, local_path
    from trainer.remote_run import open_run
    from trainer.run_folder import RunFolder

    path = local_path(folder)
    if path is not None:
        return [RunFolder(one.parent) for one in sorted(path.glob("*/config.json"))]
    names = [name for name, size in list_folder(folder).items() if size is None]
    return [
        open_run(join(folder, name))
        for name in sorted(names)
        if exists(join(folder, name, "config.json"))
    ]


def _reap(folder: "RunFolder", *, status: str) -> bool:
    from jobs.ours import record_of

    known = record_of(folder)
    if not known:
        return False
    from trainer.mlflow_run import end_if_running

    return end_if_running(known["uri"], known["run_id"], key=known.get("key", ""), status=status)


if __name__ == "__main__":
    run(command)
