"""`longrow check`: nine points at which a Transformer-XL goes wrong, on one's own run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.entry import Exit, Job, Outcome, run
from jobs.visible import echo

if TYPE_CHECKING:
    from trainer.check import Case


@click.command("check", cls=Job)
@click.argument("run_name", metavar="RUN|CHECKPOINT|CONFIG")
def command(run_name: str) -> Outcome:
    """Try nine points at which a Transformer-XL goes wrong on a run's own model and store.

    RUN is a run's folder or its name under runs/: its newest checkpoint is tried, or the weights it
    would begin with. CONFIG is a run's TOML file, before anything was trained.
    """
    from trainer.check import check

    case, told = _case(run_name)
    echo(told, err=True)
    points = check(case)
    for point in points:
        echo(
            f"{'WRONG' if point.wrong else 'ok':<6} {point.name}"
            + (f": {point.wrong}" if point.wrong else "")
        )
    wrong = [point.name for point in points if point.wrong]
    facts: dict[str, Any] = {
        "points": [{"name": p.name, "ok": not p.wrong, "wrong": p.wrong} for p in points],
        "wrong": wrong,
    }
    return Outcome(facts=facts, code=Exit.FAILED if wrong else Exit.DONE)


def _case(word: str) -> "tuple[Case, str]":
    """What to check, and what that is in words.

    Raises:
        ConfigError: There is no such run or config.
        DataError: Its store or checkpoint cannot be read.
    """
    from jobs.config import read_config
    from jobs.drive import folder_of, open_checked, plan_of
    from jobs.find import config_of, find_run, is_checkpoint, is_run, load
    from model.transformer_xl import TransformerXL
    from pipeline.rows_state import RowsState
    from trainer.check import make_case
    from trainer.checkpoint import checkpoints, read_state
    from trainer.load import best_device

    if word.endswith(".toml"):
        config = read_config(Path(word), environment=os.environ)
    elif is_run(word) and not checkpoints(find_run(word).checkpoints):
        config = config_of(find_run(word))
    else:
        found = load(word)
        loaded, store = found.loaded, found.loaded.open_store()
        state = (
            RowsState.from_json(read_state(found.path)["rows"])
            if is_checkpoint(str(found.path))
            else None
        )
        case = make_case(loaded.model, store, loaded.layout, state)
        return case, f"{found.shown}, step {loaded.step}, {loaded.store}"
    store = open_checked(config)
    plan = plan_of(config, folder_of(config), store)
    model = TransformerXL(plan.model, seed=plan.seed).to(best_device())
    return make_case(model, store, plan.layout), f"{word}, fresh weights, {plan.store}"


if __name__ == "__main__":
    run(command)
