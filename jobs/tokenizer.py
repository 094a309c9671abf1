"""`longrow tokenizer`: documents in, one lossless tokenizer file out."""

import hashlib
from collections import Counter
from collections.abc import Iterator

import click

from jobs.entry import Job, Outcome, run
from jobs.options import settings_options
from jobs.progress import Progress
from pipeline.corpus import Document, Plan, SourceOptions, plan_tasks
from pipeline.errors import DataError
from pipeline.files import exists, write_whole
from pipeline.records import read_task
from pipeline.settings import BuildSettings, TokenizerSettings
from pipeline.tokenizer import Tokenizer, train_from_settings

INPUTS_HELP = "INPUTS are files, folders, globs or URLs."


@click.command("tokenizer", cls=Job, epilog=INPUTS_HELP)
@click.argument("inputs", nargs=-1, required=True)
@click.option("--out", required=True, help="File or URL to write the tokenizer to.")
@click.option("--force", is_flag=True, help="Replace the file at --out.")
@settings_options(TokenizerSettings)
@click.option("--text-key", default="text", show_default=True, help="Key of a JSON record's text.")
def command(
    inputs: tuple[str, ...],
    *,
    out: str,
    force: bool,
    text_key: str,
    **settings: object,
) -> Outcome:
    """Train a lossless tokenizer on a corpus."""
    wanted = TokenizerSettings(**settings)  # pyright: ignore[reportArgumentType]
    if not force and exists(out):
        raise click.UsageError(
            f"{out} is there already. Name another file with --out, or replace it with --force: "
            "stores that were built with it keep their own copy."
        )
    facts = train(inputs, out=out, settings=wanted, text_key=text_key)
    print(
        f"read        {facts['documents']:,} documents, {facts['rejected']:,} bad records left out"
    )
    print(f"vocabulary  {facts['vocab_size']:,} ids ({wanted.model_type})")
    print(f"written     {out}")
    return Outcome(facts=facts)


def train(
    inputs: tuple[str, ...], *, out: str, settings: TokenizerSettings, text_key: str = "text"
) -> dict[str, int | str]:
    """Train a tokenizer on a corpus and write it to `out`, whole or not at all.

    Raises:
        DataError: The corpus cannot be read, or is too small for the vocabulary.
    """
    plan = plan_tasks(
        inputs, task_bytes=BuildSettings().task_bytes, options=SourceOptions(text_key=text_key)
    )
    seen = Counter[str]()
    with Progress("reading for the tokenizer", unit="bytes") as progress:
        model = train_from_settings(_texts(plan, seen, progress), settings)
    tokenizer = Tokenizer.from_bytes(model)
    write_whole(out, model)
    return {
        "tokenizer": out,
        "sha256": hashlib.sha256(model).hexdigest(),
        "vocab_size": tokenizer.vocab_size,
        "documents": seen["documents"],
        "rejected": seen["rejected"],
    }


def _texts(plan: Plan, seen: Counter[str], progress: Progress) -> Iterator[str]:
    def watch(num_bytes: int) -> None:
        seen["bytes"] += num_bytes
        progress.show(seen["bytes"], plan.num_bytes, f"{seen['documents']:,} documents")

    for task in plan.tasks:
        for item in read_task(task, watch=watch):
            if isinstance(item, Document):
                seen["documents"] += 1
                yield item.text
            else:
                seen["rejected"] += 1
    if not seen["documents"]:
        raise DataError(
            f"No document in this corpus ({seen['rejected']:,} bad records). Check the path and "
            "--text-key; `longrow build` names each bad record."
        )


if __name__ == "__main__":
    run(command)
