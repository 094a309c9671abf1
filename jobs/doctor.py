"""`longrow doctor`: is this machine, with its environment, one that a run can live on?

Each finding is ok, a note (it works, not as tested or not as fast) or wrong, with what to do. What
is looked at: jobs/doctor_machine.py, jobs/doctor_storage.py, jobs/doctor_services.py.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from jobs.address import ADDRESSES
from jobs.entry import Exit, Job, Outcome, run
from jobs.visible import echo

State = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found at one point.

    Attributes:
        name: Of the point.
        state: Only `wrong` makes the command fail.
        found: What is there.
        do: What to do about it; empty where all is well.
    """

    name: str
    state: State
    found: str
    do: str = ""


@click.command("doctor", cls=Job)
@click.option(
    "--storage",
    multiple=True,
    default=("runs",),
    show_default=True,
    help="Folder or URL that runs or stores will be written to; may be given again.",
)
@click.option(
    "--free-gb",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Free space that each local place must have.",
)
@click.option(
    "--address",
    envvar=ADDRESSES,
    default="",
    help="A Ray cluster, or its dashboard (http://HOST:8265), which `longrow submit` takes; else "
    "that of RAY_API_SERVER_ADDRESS or RAY_ADDRESS.",
)
@click.option(
    "--tracking",
    envvar="MLFLOW_TRACKING_URI",
    default="",
    help="MLflow's address; else that of MLFLOW_TRACKING_URI.",
)
@click.option(
    "--constraints",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar="LONGROW_CONSTRAINTS",
    help="File of tested versions; else that of LONGROW_CONSTRAINTS (as in the image), or of the "
    "clone where this is one.",
)
def command(
    storage: Sequence[str],
    *,
    free_gb: float,
    address: str,
    tracking: str,
    constraints: Path | None,
) -> Outcome:
    """Look for what would stop a run on this machine, and say what to do about it.

    Versions, GPUs, shared memory, Ray, MLflow, storage, space and clocks. Nothing is left behind.
    Exit code 1 if something is wrong.
    """
    from jobs import doctor_machine, doctor_services, doctor_storage

    need = int(free_gb * 1e9)
    checks: list[Callable[[], list[Finding]]] = [
        lambda: [doctor_machine.python()],
        lambda: [doctor_machine.packages(constraints or doctor_machine.constraints_of_clone())],
        lambda: [doctor_machine.gpus()],
        lambda: [doctor_machine.shared_memory()],
        lambda: doctor_services.ray_cluster(address, os.environ),
        lambda: doctor_services.mlflow_server(tracking, os.environ),
        *(lambda url=url or ".": doctor_storage.storage(url, need=need) for url in storage),
        lambda: [doctor_storage.scratch(need=need)],
    ]
    findings = [show(finding) for check in checks for finding in check()]
    wrong = sum(finding.state == "wrong" for finding in findings)
    echo(f"{wrong} of {len(findings)} are wrong." if wrong else "Nothing is wrong.")
    facts = {"wrong": wrong, "findings": [asdict(finding) for finding in findings]}
    return Outcome(facts=facts, code=Exit.FAILED if wrong else Exit.DONE)


def show(finding: Finding) -> Finding:
    """Print a finding at once: some take seconds."""
    echo(f"{finding.state:<6}{finding.name:<15}{finding.found}")
    if finding.do:
        echo(f"{'':<21}-> {finding.do}")
    return finding


if __name__ == "__main__":
    run(command)
