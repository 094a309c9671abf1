"""From a config and a corpus to the store that the run reads: tokenizer first, then parts."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from jobs.cluster import cores
from jobs.config import RunConfig
from jobs.drive import say
from jobs.progress import Progress
from pipeline.build import BuildReport
from pipeline.build_actor import build_store_with_actors
from pipeline.corpus import plan_tasks
from pipeline.files import write_whole
from pipeline.progress import BuildProgress
from pipeline.records import read_texts
from pipeline.tokenizer import Tokenizer, train_from_settings


def prepare_store(config: RunConfig, inputs: Sequence[str]) -> BuildReport:
    """Train the tokenizer and build the store of `config`, or what is missing of them.

    Ray is initialised by the caller.

    Args:
        config: Names the store, and how both are made.
        inputs: The corpus.

    Raises:
        DataError: The corpus cannot be used.
    """
    tokenizer = config.data.tokenizer or str(_trained(config, inputs))
    with Progress("tokenizing", unit="bytes") as bar:

        def show(progress: BuildProgress) -> None:
            bar.show(progress.bytes_done, progress.bytes, f"{progress.documents:,} documents")

        report = build_store_with_actors(
            inputs,
            tokenizer=tokenizer,
            out=config.data.store,
            settings=config.data.build(),
            workers=config.data.workers or cores(),
            progress=show,
        )
    say(
        f"Store: {report.documents:,} documents, {report.tokens:,} tokens in {report.parts} parts; "
        f"{report.documents_validation:,} documents held out, {sum(report.rejected.values()):,} records "
        f"rejected: {config.data.store}"
    )
    return report


def _trained(config: RunConfig, inputs: Sequence[str]) -> Path:
    """The tokenizer of these inputs and settings, trained if it is not there yet."""
    settings, build = config.tokenizer, config.data.build()
    told = json.dumps([asdict(settings), config.data.text_key]).encode()
    key = hashlib.sha256(told)
    for name in inputs:
        key.update(hashlib.sha256(Path(name).read_bytes()).digest())
    path = Path(f"{config.data.store}-tokenizer-{key.hexdigest()[:12]}.model")
    if not path.exists():
        with Progress("training the tokenizer", unit="documents") as bar:
            bar.show(0)
            plan = plan_tasks(inputs, task_bytes=build.task_bytes, options=build.options)
            model = train_from_settings(read_texts(plan.tasks), settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(str(path), model)
    trained = Tokenizer.load(str(path))
    say(f"Tokenizer: {settings.model_type}, {trained.vocab_size:,} ids, lossless: {path}")
    return path
