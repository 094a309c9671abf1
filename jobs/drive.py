"""From a config to a verdict: check, take the run's folder, track, start the workers, sum up."""

import errno
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from jobs.config import RunConfig
from jobs.ending import OVERTAKEN, code_of, keep_all, message_of
from jobs.entry import Exit, Terminated, mute, sent
from jobs.hearing import Claim, claimed
from jobs.progress import Progress
from jobs.track import Track, track
from jobs.visible import visible
from pipeline.cache import PartCache
from pipeline.files import join, local_path
from pipeline.growing import GrowingStore
from pipeline.layout import check_layout
from pipeline.lengths import mixed
from pipeline.store import MIXTURE, Store
from trainer.board import News, Verdict
from trainer.checkpoint import newest_of, read_state
from trainer.errors import ConfigError
from trainer.load import check_initial
from trainer.plan import TrainPlan, changes, check_identity
from trainer.remote_run import open_run
from trainer.run_folder import RunFolder
from trainer.signals import StopWish, stop_wish
from trainer.stop_request import asked_to_stop, driving
from trainer.summary import Summary, summarize

if TYPE_CHECKING:
    from jobs.beside import Beside

BEAT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """What came of a run.

    Attributes:
        summary: The run in numbers.
        code: The exit code.
        message: What to say when it did not come to its end.
    """

    summary: Summary
    code: Exit
    message: str = ""


def folder_of(config: RunConfig) -> RunFolder:
    """Where the run of `config` lives.

    Raises:
        DataError: run.folder is a URL that cannot be reached.
    """
    path = local_path(config.run.folder)
    if path is None:
        return open_run(join(config.run.folder, config.run.name))
    return RunFolder(path.resolve() / config.run.name)


def open_checked(config: RunConfig) -> Store:
    """Open the run's store and see that its documents suffice.

    Raises:
        ConfigError: No store is named.
        RowsError: The rows cannot be shared out evenly.
        DataError: It cannot be read, or has fewer training documents than the run has rows.
    """
    if not config.data.reads:
        raise ConfigError("data.store is empty: name the store that `longrow build` wrote.")
    cache = PartCache(config.data.cache, config.data.cache_bytes) if config.data.cache else None
    store = Store.open(config.data.reads, cache)
    check_layout(
        config.rows,
        documents=mixed(store.by_length("train")),
        world_size=world_size(config),
        accumulation=config.trainer.accumulation,
    )
    return store


def world_size(config: RunConfig) -> int:
    """W, as far as it is known before the workers are there."""
    if config.cluster.launcher == "local":  # torchrun's environment says it
        return int(os.environ.get("WORLD_SIZE", "1"))
    return config.cluster.workers


def drive(
    config: RunConfig,
    *,
    resume: str,
    ray_is_up: bool = False,
    reshard: bool = False,
    build: "Beside | None" = None,
    claim: Claim | None = None,
) -> Driven:
    """Train the run of `config` to its end, or until it is told to stop.

    Args:
        config: The run.
        resume: "auto" goes on where the run's folder holds a run, "never" refuses one that does,
            "must" refuses one that does not.
        ray_is_up: Ray was initialised by the caller, with trainer.launch_ray's environment.
        reshard: Other rows, or another segment, than the run had are wanted.
        build: Builds the store meanwhile; when it fails the run stops, with a checkpoint.
        claim: The caller has taken the run's folder already.

    Raises:
        ConfigError: A setting does not fit, or the run is there and must not be, or the reverse.
        DataError: The store does not fit.
    """
    began = time.monotonic()
    store = build.store.whole or build.store if build else open_checked(config)
    folder = find_folder(config, resume)
    plan = replace(plan_of(config, folder, store), reshard=reshard)
    changed = _check_it_is_this_run(folder, plan)
    with ExitStack() as stack:
        if claim is None:  # before Ray is there: `longrow stop` is heard from here on
            claim = stack.enter_context(claimed(folder, first=is_first_rank(config), say=say))
        elif is_first_rank(config):  # once more: another start may have come, and gone, meanwhile
            stack.enter_context(driving(folder, launch=claim.launch))
        if is_first_rank(config):
            folder.write_json("config.json", config.to_dict())
        stack.enter_context(_ray_for(config, ray_is_up=ray_is_up))
        wish = stack.enter_context(stop_wish(sent()))
        tracked = track(config, folder, store, changed=changed, warn=say)
        claim.begun.set()
        status, at_once = "crashed", False
        try:
            plan = replace(plan, launch=claim.launch, mlflow_run_id=tracked.run_id)
            for line in folder.lines():
                tracked.line(line)  # what an earlier start could not send; the rest is left out
            verdict = _launch(
                plan,
                tracked,
                _told_once(wish, config, folder, build),
                held_out=_held_out(store),
            )
            store = _newest(store)
            folder.refresh()
            # Of a run that is another process's now, nothing is written or set any more.
            status = OVERTAKEN if verdict.kind == OVERTAKEN else verdict.status
            wall_seconds = time.monotonic() - began
            summary = _summary(config, folder, store, tracked, wall_seconds=wall_seconds)
            if status != OVERTAKEN and is_first_rank(config):
                for line in folder.lines():
                    tracked.line(line)  # what a lost board could not pass on
                keep_all(config, folder, store, tracked, summary, status=status, say=say)
                tracked.ended(message_of(verdict, folder) or "done")
        except (KeyboardInterrupt, SystemExit, Terminated):
            status, at_once = "stopped", True
            raise
        finally:
            tracked.close(status, at_once=at_once)
    code, message = code_of(verdict), message_of(verdict, folder)
    if build and build.failure() and verdict.status != "done":
        code, message = (
            build.exit_code(),
            f"The build of the store failed. {build.failure()} {message}",
        )
    return Driven(summary=summary, code=code, message=message)


def find_folder(config: RunConfig, resume: str) -> RunFolder:
    """The run's folder, if what it holds agrees with `resume`.

    Raises:
        ConfigError: It holds a run and must not, or holds none and must.
    """
    folder = folder_of(config)
    if not is_first_rank(config):
        return folder  # the first rank decides for all
    holds_run = folder.exists("config.json")
    if not holds_run and resume == "must":
        raise ConfigError(
            f"{folder.place} holds no run to go on with. Start one with `longrow train`."
        )
    if holds_run and resume == "never":
        raise ConfigError(
            f"{folder.place} holds a run already. Leave out --resume never to go on with it, or "
            "give another run.name."
        )
    return folder


def is_first_rank(config: RunConfig) -> bool:
    """False in the second and later of several processes that torchrun started."""
    return config.cluster.launcher != "local" or os.environ.get("RANK", "0") == "0"


def _check_it_is_this_run(folder: RunFolder, plan: TrainPlan) -> dict[str, str]:
    """What may change at a resume and has changed, by key; what may not is refused."""
    # A quick look: the first worker reads every byte before it goes on from one.
    newest, _ = newest_of(folder, folder.attempts(), tensors=False)
    if newest is None:
        if plan.init:
            check_initial(plan.init, plan.model, tokenizer_sha256=plan.tokenizer_sha256)
        return {}
    state = read_state(newest)
    where = folder.named(str(newest))
    check_identity(state["identity"], plan.identity(), where=where, reshard=plan.reshard)
    changed = changes(state["plan"], plan)
    for key, change in changed.items():
        say(f"Changed since {newest.name}: {key} {change}.")
    return changed


def _newest(store: Store | GrowingStore) -> Store | GrowingStore:
    """A store as far as it is built now."""
    if isinstance(store, Store):
        return store
    store.grow()
    return store.whole or store


def plan_of(config: RunConfig, folder: RunFolder, store: Store | GrowingStore) -> TrainPlan:
    """What the workers are told."""
    return TrainPlan(
        folder=folder.place,
        store=_absolute(config.data.reads),
        store_fingerprint=store.fingerprint if isinstance(store, Store) else "",
        building=store.head.plan if isinstance(store, GrowingStore) else "",
        cache=config.data.cache,
        cache_bytes=config.data.cache_bytes,
        tokenizer_sha256=store.tokenizer_sha256,
        launch=secrets.token_hex(4),
        mlflow_run_id="",
        seed=config.run.seed,
        layout=config.rows,
        model=replace(config.model, vocab_size=store.vocab_size),
        trainer=config.trainer,
        optimizer=config.optimizer,
        evaluate=config.evaluate,
        checkpoint=config.checkpoint,
        cluster=config.cluster,
        init=config.run.init,
    )


def _absolute(store: str) -> str:
    """Workers may stand in another folder."""
    return store if "://" in store or store.startswith(MIXTURE) else str(Path(store).resolve())


def _ray_for(config: RunConfig, *, ray_is_up: bool) -> AbstractContextManager[object]:
    if config.cluster.launcher == "local" or ray_is_up:
        return nullcontext()
    from jobs.cluster import ray_for_training

    return ray_for_training(config.cluster)


def _launch(
    plan: TrainPlan, tracked: Track, stop_reason: Callable[[], str], *, held_out: int
) -> Verdict:
    if plan.cluster.launcher == "ray":
        from trainer.launch_ray import launch_ray as launch
    else:
        from trainer.launch_local import launch_local as launch

    folder, began = open_run(plan.folder), [0.0]
    beats = plan.cluster.launcher == "ray" or os.environ.get("RANK", "0") == "0"

    def on_news(news: News) -> None:
        if beats and time.monotonic() - began[0] > BEAT_S:
            began[0] = time.monotonic()
            folder.beat(launch=plan.launch)
        _pass_on(news, plan, tracked, progress)
        every, last = plan.evaluate.every, plan.trainer.steps
        if scored := scored_now(news.lines, every=every, last=last, held_out=held_out):
            say(scored)

    with Progress("training", unit="steps") as progress:
        return launch(plan, on_news=on_news, stop_reason=stop_reason)


def _told_once(
    wish: StopWish, config: RunConfig, folder: RunFolder, build: "Beside | None"
) -> Callable[[], str]:
    """Why to stop; a person's wish is answered when it is first seen."""
    said: list[str] = []
    # The first rank alone: it removed what was meant for an earlier start. The others are told by
    # its vote.
    looks = is_first_rank(config)

    def reason() -> str:
        asked = "`longrow stop` was called" if looks and asked_to_stop(folder) else ""
        if not said and (why := wish.reason() or asked):
            said.append(why)
            wish.signal = wish.signal or signal.SIGTERM  # the next one is the second
            say(
                "Stopping after the current step, with a checkpoint; Ctrl-C or SIGTERM now ends "
                "it at once."
            )
        failed = "the build of the store failed" if build and build.failure() else ""
        return said[0] if said else failed

    return reason


def _pass_on(news: News, plan: TrainPlan, tracked: Track, progress: Progress) -> None:
    for note in news.notes:
        say(note)
    for line in news.lines:
        tracked.line(line)
        if line["kind"] == "checkpoint":
            folder = open_run(plan.folder)
            tracked.checkpoint(folder, folder.checkpoints / line["checkpoint"], line["step"])
        elif line["kind"] == "evaluation" and "eval/loss" in line:
            say(
                f"Step {line['step']}: held-out loss {line['eval/loss']:.4f} nats per token, "
                f"{line['eval/bits_per_byte']:.4f} bits per byte."
            )
    steps = [line for line in news.lines if line["kind"] == "step"]
    if steps:
        last = steps[-1]
        loss = "not finite" if last["train/loss"] is None else f"{last['train/loss']:.3f}"
        speed = f"{last['train/tokens_per_second']:,.0f} tokens/s"
        progress.show(last["step"], plan.trainer.steps, f"loss {loss}, {speed}")


def scored_now(lines: Sequence[Mapping[str, Any]], *, every: int, last: int, held_out: int) -> str:
    """Why no step comes now, for minutes if much is held out; empty where the next one comes.

    Args:
        lines: What came up together, an evaluation maybe with its step.
        every: Steps from one evaluation to the next; 0 has none. Those by the clock are not told.
        last: Step of the run, which is scored too.
        held_out: Tokens of the documents that are scored.
    """
    step = max((line["step"] for line in lines if line["kind"] == "step"), default=0)
    due = step >= last or (every > 0 and step > 0 and step % every == 0)
    scored = any(line["kind"] == "evaluation" and line["step"] == step for line in lines)
    if not (due and held_out) or scored:
        return ""
    return f"Step {step}: scoring {held_out:,} held-out tokens."


def _held_out(store: Store | GrowingStore) -> int:
    """Tokens of the held-out documents; 0 where they are not all known yet."""
    return int(store.num_tokens("validation").sum()) if isinstance(store, Store) else 0


def _summary(
    config: RunConfig,
    folder: RunFolder,
    store: Store | GrowingStore,
    tracked: Track,
    *,
    wall_seconds: float,
) -> Summary:
    return summarize(
        folder,
        documents=store.documents,
        tokens=store.tokens,
        memory=config.model.memory,
        wall_seconds=wall_seconds,
        mlflow_run_id=tracked.run_id,
    )


def say(sentence: str) -> None:
    """Say something to the person, above the progress bar where there is one.

    A terminal that was closed, or a full disk behind it, takes no run with it.
    """
    try:
        tqdm.write(visible(sentence), file=sys.stderr)
    except OSError as error:
        if error.errno in (errno.EIO, errno.EPIPE):  # for good: the last sentence is not to fail
            mute(sys.stderr)
