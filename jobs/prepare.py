"""From a config and a corpus to the store that the run reads: tokenizer first, then parts."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial

from jobs.build import showing
from jobs.config import RunConfig
from jobs.drive import Driven, drive, find_folder, is_first_rank, say
from jobs.entry import raise_on_sigterm
from jobs.hearing import claimed, heard
from jobs.progress import Progress
from jobs.tokenizer import ignored_in_words
from pipeline.build import build_store
from pipeline.files import exists, join, write_whole
from pipeline.finish import BuildReport
from pipeline.growing_server import GROWING_ORDERS
from pipeline.manifest import MANIFEST
from pipeline.records import identify, read_texts
from pipeline.sample import plan_sample
from pipeline.tokenizer import Tokenizer, train_from_settings
from trainer.errors import ConfigError


def prepare_and_drive(
    config: RunConfig, inputs: Sequence[str], *, resume: str, say_ray: bool = False
) -> Driven:
    """Build the store of `config` from `inputs`, or what is missing of it, and train its run.

    Args:
        config: The run.
        inputs: The corpus.
        resume: As `drive`.
        say_ray: Say which Ray is at work.

    Raises:
        DataError: The corpus cannot be used, or does not suffice.
        ConfigError: A setting does not fit.
    """
    if not config.data.store:
        raise ConfigError("data.store is empty: name the folder that the store goes to.")
    folder, first = find_folder(config, resume), is_first_rank(config)
    with claimed(folder, first=first, say=say) as claim:
        if config.cluster.launcher == "local":
            with heard(folder, first=first, say=say):
                prepare_store(config, inputs, build=build_store)
            return drive(config, resume=resume, claim=claim)
        # First: Ray reads its settings when it is imported.
        from jobs.cluster import cores, ray_for_training
        from pipeline.build_actor import build_store_with_actors

        with ExitStack() as stack:
            with heard(folder, first=first, say=say):
                told = stack.enter_context(ray_for_training(config.cluster))
                raise_on_sigterm()  # Ray took it
                if say_ray:
                    say(told)
                build = partial(build_store_with_actors, workers=config.data.workers or cores())
                prepare_store(config, inputs, build=build)
            return drive(config, resume=resume, ray_is_up=True, claim=claim)


def build_and_drive(config: RunConfig, inputs: Sequence[str], *, resume: str) -> Driven:
    """Train the run of `config` while its store is built from `inputs`.

    Where that cannot be, the store is built first, and a sentence says why.

    Args:
        config: The run.
        inputs: The corpus.
        resume: As `drive`.

    Raises:
        DataError: The corpus cannot be used; what shows later ends the training with a checkpoint.
        ConfigError: A setting does not fit.
    """
    if config.data.mixture:
        raise ConfigError(
            "--build builds one store, and data.mixture reads several that are finished: build "
            "each with `longrow build`, and leave out --build."
        )
    if not inputs and is_built(config):
        return drive(config, resume=resume)
    if not inputs:
        raise ConfigError(
            "There is no corpus to build from: name it after --build, or in data.inputs."
        )
    if why := _why_first(config):
        say(f"The store is built before the first step: {why}")
        return prepare_and_drive(config, inputs, resume=resume)
    folder, first = find_folder(config, resume), is_first_rank(config)
    with claimed(folder, first=first, say=say) as claim, ExitStack() as stack:
        from jobs.cluster import ray_for_training  # first: Ray reads its settings when imported

        with heard(folder, first=first, say=say):
            stack.enter_context(ray_for_training(config.cluster))
            raise_on_sigterm()  # Ray took it
            from jobs.beside import Beside

            tokenizer = config.data.tokenizer or _trained(config, inputs)
            build = stack.enter_context(Beside(config, inputs, tokenizer))
        return drive(config, resume=resume, ray_is_up=True, build=build, claim=claim)


def _why_first(config: RunConfig) -> str:
    """Why no step can be taken before the store is whole; empty if one can."""
    if is_built(config):
        return "one is there, and is brought up to date."
    if config.rows.shuffle not in GROWING_ORDERS:
        return (
            f"rows.shuffle = {config.rows.shuffle!r} draws from all documents. With "
            'rows.shuffle = "none" (store order) the first step need not wait.'
        )
    if config.data.dedup != "off":
        return "data.dedup leaves documents out when all are known."
    if config.evaluate.patience:
        return (
            "evaluate.patience counts every evaluation, and none can be made before the held-out "
            "documents are all known."
        )
    if config.cluster.launcher != "ray":
        return 'actors of Ray build beside a training, and cluster.launcher = "local" has none.'
    return ""


def is_built(config: RunConfig) -> bool:
    """Whether a finished store is there."""
    if not config.data.store:
        raise ConfigError("data.store is empty: name the folder that the store goes to.")
    return exists(join(config.data.store, MANIFEST))


def prepare_store(
    config: RunConfig, inputs: Sequence[str], *, build: Callable[..., BuildReport]
) -> None:
    """Train the tokenizer and build the store of `config`, or what is missing of them."""
    tokenizer = config.data.tokenizer or _trained(config, inputs)
    with Progress("tokenizing", unit="bytes") as bar:
        report = build(
            inputs,
            tokenizer=tokenizer,
            out=config.data.store,
            settings=config.data.build(),
            progress=showing(bar),
        )
    say(store_line(report, config.data.store))


def store_line(report: BuildReport, store: str) -> str:
    """What was built, in a sentence."""
    ignored = f"; ignored {ignored_in_words(report.ignored)}" if report.ignored else ""
    if report.not_skipped:
        ignored += f"; data.skip names no record by {', '.join(report.not_skipped)}"
    return (
        f"Store: {report.documents:,} documents, {report.tokens:,} tokens in {report.parts:,} "
        f"part{'s' if report.parts != 1 else ''}; "
        f"{report.documents_validation:,} documents held out, "
        f"{sum(report.rejected.values()):,} records rejected: {store}{ignored}"
    )


def _trained(config: RunConfig, inputs: Sequence[str]) -> str:
    """The tokenizer of these inputs and settings, trained if it is not there yet."""
    settings, build = config.tokenizer, config.data.build()
    rest = (build.options.encoding, build.options.newlines, build.options.separator)
    read_as = [] if rest == ("utf-8", "keep", "") else [rest]  # the name of before these were
    told = json.dumps([asdict(settings), config.data.text_key, *read_as]).encode()
    key = hashlib.sha256(told)
    plan = plan_sample(
        inputs, sample_bytes=settings.sample_bytes, seed=settings.seed, options=build.options
    )
    for task in plan.tasks:
        key.update("".join(identify(task)).encode())
    path = f"{config.data.store}-tokenizer-{key.hexdigest()[:12]}.model"
    if not exists(path):
        with Progress("reading for the tokenizer", unit="documents") as bar:

            def counted() -> Iterator[str]:
                for count, text in enumerate(read_texts(plan.tasks)):
                    bar.show(count)
                    yield text

            model = train_from_settings(counted(), settings)
        write_whole(path, model)
    trained = Tokenizer.load(path)
    say(f"Tokenizer: {settings.model_type}, {trained.vocab_size:,} ids, lossless: {path}")
    return path
