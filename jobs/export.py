"""`longrow export`: weights as safetensors and JSON, by our names or by published ones."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.entry import Job, Outcome, run
from jobs.visible import echo

if TYPE_CHECKING:
    from model.reference import Dialect
    from trainer.load import Loaded


@click.command("export", cls=Job)
@click.argument("run_name", metavar="RUN|CHECKPOINT")
@click.argument("out", type=Path)
@click.option(
    "--names",
    type=click.Choice(["ours", "original", "huggingface"]),
    default="ours",
    show_default=True,
    help="Whose names and order of clusters.",
)
def command(run_name: str, out: Path, *, names: str) -> Outcome:
    """Write a checkpoint's weights to a folder, as safetensors and JSON.

    By our names the folder is one that `evaluate` and `generate` read, its tokenizer included. A
    folder that `import-weights` wrote can be given for RUN.
    """
    from jobs.find import load
    from jobs.weights_folder import check_free, write_folder
    from model.reference import config_to_reference
    from trainer.load import export_folder

    check_free(out)
    loaded = load(run_name).loaded
    if names == "ours":
        write_folder(out, lambda folder: export_folder(loaded, folder))
    else:
        dialect: Dialect = "original" if names == "original" else "huggingface"
        config_to_reference(loaded.model.config, dialect=dialect)  # refuses before a file is there
        write_folder(out, lambda folder: _published(loaded, folder, dialect))
    count = sum(weight.numel() for weight in loaded.model.parameters())
    echo(f"{count:,} weights of step {loaded.step}, with the names of {names}: {out}")
    return Outcome(
        facts={"folder": str(out), "names": names, "weights": count, "step": loaded.step}
    )


def _published(loaded: "Loaded", folder: Path, dialect: "Dialect") -> None:
    from model.reference import config_to_reference, to_reference
    from model.weights import WEIGHTS, save_tensors
    from pipeline.files import write_whole

    config = loaded.model.config
    save_tensors(to_reference(loaded.model.state_dict(), config, dialect=dialect), folder / WEIGHTS)
    told = json.dumps(config_to_reference(config, dialect=dialect), indent=1) + "\n"
    write_whole(str(folder / "config.json"), told.encode())


if __name__ == "__main__":
    run(command)
