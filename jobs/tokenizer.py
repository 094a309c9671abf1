"""`longrow tokenizer`: documents in, one lossless tokenizer file out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from jobs.entry import Job, Outcome, run
from jobs.options import settings_options
from jobs.progress import Progress
from jobs.visible import echo
from pipeline.corpus import Document, Plan, SourceOptions
from pipeline.errors import DataError
from pipeline.examine import examine
from pipeline.files import exists, write_whole
from pipeline.records import read_task
from pipeline.sample import TextDraw, plan_sample
from pipeline.settings import BuildSettings, TokenizerSettings
from pipeline.tokenizer import Tokenizer, train_from_settings

EXAMINED_BYTES = 2_000_000  # of text that is encoded and decoded for the report
INPUTS_HELP = (
    "INPUTS are files, folders, globs or URLs. "
    "@LIST stands for those that a file or URL names, one a line."
)


@click.command("tokenizer", cls=Job, epilog=INPUTS_HELP)
@click.argument("inputs", nargs=-1, required=True)
@click.option("--out", required=True, help="File or URL to write the tokenizer to.")
@click.option("--force", is_flag=True, help="Replace the file at --out.")
@settings_options(TokenizerSettings)
@click.option("--text-key", default="text", show_default=True, help="Key of a JSON record's text.")
@click.option("--encoding", default="utf-8", show_default=True, help="Of text files.")
@click.option("--separator", default="", help="Between documents of a text file, as for build.")
@click.option(
    "--from",
    "model",
    default="",
    help="Take this sentencepiece model instead of training one; say what it loses on the corpus.",
)
def command(
    inputs: tuple[str, ...],
    *,
    out: str,
    force: bool,
    text_key: str,
    encoding: str,
    separator: str,
    model: str,
    **settings: object,
) -> Outcome:
    """Train a lossless tokenizer on a corpus."""
    wanted = TokenizerSettings(**settings)  # pyright: ignore[reportArgumentType]
    if not force and exists(out):
        raise click.UsageError(
            f"{out} is there already. Name another file with --out, or replace it with --force: "
            "stores that were built with it keep their own copy."
        )
    options = BuildSettings(text_key=text_key, encoding=encoding, separator=separator).options
    facts = train(inputs, out=out, settings=wanted, options=options, model=model)
    echo(
        f"read        {facts['documents']:,} documents, {facts['rejected']:,} bad records left out"
    )
    echo(f"vocabulary  {facts['vocab_size']:,} ids ({model or wanted.model_type})")
    if facts["ignored"]:
        echo(f"ignored     {ignored_in_words(facts['ignored'])}")
    echo(in_words(facts["report"]))
    echo(f"written     {out}")
    return Outcome(facts=facts)


def ignored_in_words(names: Sequence[str]) -> str:
    """The files of walked folders that were left out, and how to have them taken."""
    first = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    count = f"{len(names):,} file{'s' if len(names) > 1 else ''} of no known kind"
    return f"{count}: {first} (named, also by a glob, a file is taken)"


def in_words(report: dict[str, Any]) -> str:
    """What a tokenizer made of a sample, for a person."""
    lines = [
        f"sample      {report['documents']:,} documents, {report['bytes']:,} bytes of text",
        f"size        {report['bytes_per_token']:.2f} bytes a token",
        f"letters     {report['fallback']:.2%} of the tokens spell one in bytes",
        f"unknown     {report['unknown']:.2%} of the tokens",
        f"round trip  {report['round_trip_failures']:,} documents come back changed",
    ]
    if report["loses"]:
        lines.append(f"loses       {', '.join(report['loses'])}")
    return "\n".join(lines)


def train(
    inputs: tuple[str, ...],
    *,
    out: str,
    settings: TokenizerSettings,
    options: SourceOptions | None = None,
    model: str = "",
) -> dict[str, Any]:
    """Train a tokenizer on a corpus and write it to `out`, whole or not at all.

    Args:
        inputs: The corpus.
        out: File or URL.
        settings: Of the training.
        options: How records are read.
        model: A sentencepiece model that is taken instead of training one.

    Raises:
        DataError: The corpus cannot be read, or is too small for the vocabulary.
    """
    taken = Tokenizer.load(model) if model else None
    plan = plan_sample(
        inputs, sample_bytes=settings.sample_bytes, seed=settings.seed, options=options
    )
    seen = Counter[str]()
    draw = TextDraw(sample_bytes=EXAMINED_BYTES, seed=settings.seed)
    with Progress("reading for the tokenizer", unit="bytes") as progress:
        texts = draw.passing(_texts(plan, seen, progress))
        tokenizer = taken or Tokenizer(train_from_settings(texts, settings))
        for _ in texts:  # what training did not ask for
            pass
    report = examine(tokenizer, draw.sample())
    write_whole(out, tokenizer.model_bytes)
    return {
        "tokenizer": out,
        "sha256": tokenizer.sha256,
        "vocab_size": tokenizer.vocab_size,
        "documents": seen["documents"],
        "rejected": seen["rejected"],
        "ignored": plan.ignored,
        "report": asdict(report),
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
