"""`longrow build`: a corpus and a tokenizer in, a store out, by Ray actors."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from jobs.entry import Job, Outcome, raise_on_sigterm, run
from jobs.options import settings_options
from jobs.progress import Progress
from jobs.tokenizer import INPUTS_HELP, ignored_in_words
from jobs.visible import echo
from pipeline.build import build_store, prepare
from pipeline.finish import BuildReport
from pipeline.progress import BuildProgress, Seen
from pipeline.settings import BuildSettings


@click.command("build", cls=Job, epilog=INPUTS_HELP)
@click.argument("inputs", nargs=-1, required=True)
@click.option("--tokenizer", required=True, help="File or URL of the tokenizer.")
@click.option("--out", required=True, help="Folder or URL of the store.")
@settings_options(BuildSettings)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Ray actors that build; 0 takes one a core.",
)
@click.option("--address", default="", help="A Ray cluster to join; else one is started here.")
@click.option("--no-ray", is_flag=True, help="Build in this process: the store is the same.")
def command(
    inputs: tuple[str, ...],
    *,
    tokenizer: str,
    out: str,
    workers: int,
    address: str,
    no_ray: bool,
    **settings: object,
) -> Outcome:
    """Tokenize a corpus into a store."""
    if no_ray and (address or workers):
        raise click.UsageError(
            "--no-ray builds in this process: leave --workers and --address out."
        )
    wanted = BuildSettings(**settings)  # pyright: ignore[reportArgumentType]
    with Progress("building", unit="bytes") as progress:
        if no_ray:
            report = build_store(
                inputs, tokenizer=tokenizer, out=out, settings=wanted, progress=showing(progress)
            )
        else:
            prepare(inputs, tokenizer=tokenizer, out=out, settings=wanted)  # a refusal needs no Ray
            report = _on_ray(
                address=address,
                workers=workers,
                inputs=inputs,
                tokenizer=tokenizer,
                out=out,
                settings=wanted,
                progress=showing(progress),
            )
    echo(in_words(report))
    echo(f"store       {out}")
    return Outcome(facts={"store": out, **asdict(report)})


def showing(
    progress: Progress, *, clock: Callable[[], float] = time.monotonic
) -> Callable[[BuildProgress], None]:
    """What a build calls to be shown: documents, tokens and their rate, and each actor's task."""
    first: list[tuple[float, int]] = []  # clock and tokens when this build was first heard of

    def show(build: BuildProgress) -> None:
        if not first:
            first.append((clock(), build.tokens))
        passed_s = clock() - first[0][0]
        note = f"{build.documents:,} documents, {build.tokens:,} tokens"
        if passed_s > 0:
            note += f", {(build.tokens - first[0][1]) / passed_s:,.0f} tokens/s"
        if build.rejected:
            note += f", {build.rejected:,} bad records"
        progress.show(build.bytes_done, build.bytes, note, [_line(b) for b in build.builders])

    return show


def _line(builder: Seen) -> str:
    memory = f"{builder.peak_bytes / 1e6:,.0f} MB of memory"
    if not builder.task:
        return f"  actor {builder.builder}: between two tasks, {memory}"
    return f"  actor {builder.builder}: {builder.task}, {builder.tokens:,} tokens, {memory}"


def in_words(report: BuildReport) -> str:
    """A build's result for a person, a line each."""
    bad = sum(report.rejected.values())
    lines = [
        f"documents   {report.documents:,}, {report.documents_validation:,} of them held out",
        f"tokens      {report.tokens:,}, {report.tokens_validation:,} of them held out",
        f"longest     {report.longest:,} tokens",
        f"text        {report.bytes:,} bytes",
        f"parts       {report.parts:,}, of {report.vocab_size:,} token ids",
    ]
    if bad:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.rejected.items())
        lines.append(f"bad records {bad:,} left out ({reasons}), each named in rejects.jsonl")
    if report.not_skipped:
        names = ", ".join(report.not_skipped)
        lines.append(
            f"not skipped {names}: no record has this id or place (`longrow show STORE "
            "--doc N` shows both)"
        )
    if report.empty:
        lines.append(f"empty       {report.empty:,} documents without text left out")
    if report.cut:
        lines.append(f"cut         {report.cut:,} long texts into {report.pieces:,} documents")
    if report.dropped:
        lines.append(f"dropped     {report.dropped:,} repeated texts, named in dropped.jsonl")
    if report.duplicate_ids:
        lines.append(f"duplicates  {report.duplicate_ids:,} ids stand at more than one document")
    if report.loses:
        lines.append(f"not kept    by this tokenizer: {', '.join(report.loses)}")
    if report.ignored:
        lines.append(f"ignored     {ignored_in_words(report.ignored)}")
    return "\n".join(lines)


def _on_ray(*, address: str, workers: int, inputs: tuple[str, ...], **build: Any) -> BuildReport:
    from jobs.cluster import local_ray  # Ray is seconds to import, and --no-ray works without it
    from pipeline.build_actor import build_store_with_actors

    with local_ray(num_cpus=workers or None, address=address) as cores:
        raise_on_sigterm()  # Ray has put its own handler there
        return build_store_with_actors(inputs, workers=workers or cores, **build)


if __name__ == "__main__":
    run(command)
