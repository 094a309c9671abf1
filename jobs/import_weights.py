"""`longrow import-weights`: a model published elsewhere, as a folder that longrow reads."""

from pathlib import Path

import click

from jobs.entry import Job, Outcome, run
from jobs.visible import echo


@click.command("import-weights", cls=Job)
@click.argument("weights", metavar="REFERENCE", type=Path)
@click.argument("config", metavar="CONFIG", type=Path)
@click.argument("out", type=Path)
@click.option(
    "--names",
    type=click.Choice(["auto", "original", "huggingface"]),
    default="auto",
    show_default=True,
    help="Whose names and order of clusters; auto tells by the prefix `transformer.`.",
)
def command(weights: Path, config: Path, out: Path, *, names: str) -> Outcome:
    """Turn published weights into a folder that `evaluate` and `generate` read.

    REFERENCE is a safetensors or npz file with the names of the original PyTorch code or of Hugging
    Face's port, CONFIG the JSON published with it. Pickles are refused: they can run code.
    """
    from jobs.published import read_published, read_settings
    from jobs.weights_folder import check_free, write_folder
    from model.reference import from_reference
    from model.transformer_xl import TransformerXL
    from model.weights import save_weights, set_weights

    check_free(out)
    settings = read_settings(config)
    model = TransformerXL(settings)
    tensors = read_published(weights)
    dialect = None if names == "auto" else names
    set_weights(model, from_reference(tensors, settings, dialect=dialect))  # pyright: ignore[reportArgumentType]
    write_folder(out, lambda folder: save_weights(model, folder))
    count = sum(weight.numel() for weight in model.parameters())
    echo(f"{count:,} weights of {settings.layers} layers, {settings.vocab_size:,} ids: {out}")
    return Outcome(facts={"folder": str(out), "weights": count, "vocab_size": settings.vocab_size})


if __name__ == "__main__":
    run(command)
