"""Start a run's workers by Ray Train, and watch them (board_actor.py is how they talk).

Ray Train places the workers, sets up the process group and starts them again when one dies. What it
is not asked for: checkpoints (committed by the loop to the run's own folder), the stop (a flag on
the board, see board.py) and the verdict (returned by the training function; only deaths raise).
"""

import itertools
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.util import get_current_placement_group, remove_placement_group

from pipeline.growing import open_documents
from pipeline.server_actor import ActorReader
from trainer.board import Entered, News, Verdict
from trainer.board_actor import BoardActor, BoardReporter
from trainer.errors import ConfigError
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder

POLL_S = 0.25
# Read by the processes that Ray starts, so they must stand in the environment before ray.init().
ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a config keep their meaning
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # a death is seen, and an end, this soon
}


def _work(config: dict[str, Any]) -> Verdict:
    """What Ray Train runs in each worker."""
    plan: TrainPlan = config["plan"]
    board: Any = config["board"]
    rank = ray.train.get_context().get_world_rank()
    actor, place = ray.get_runtime_context().current_actor, get_current_placement_group()
    entered: Entered = ray.get(board.enter.remote(rank, actor, place))
    if entered.starts > plan.cluster.retries + 1:
        return gave_up(plan, entered)
    reporter = BoardReporter(board)
    try:
        device = torch.device(ray.train.torch.get_device())
        group = Group(device=device, timeout_s=plan.cluster.hang_timeout_s)
        return train(plan, group, reporter, lambda rows: _open_reader(plan, rows))
    except Exception as error:
        path = RunFolder(plan.folder).keep_error(rank, traceback.format_exc())
        reporter.failed(f"Rank {rank}: {type(error).__name__}: {_first_line(error)} ({path})")
        raise  # Ray Train starts the workers again
    finally:
        reporter.close()


def gave_up(plan: TrainPlan, entered: Entered) -> Verdict:
    """The verdict on workers that died too often."""
    first = entered.first_error or "they left no word: killed from outside, or out of memory"
    return Verdict(
        status="gave up",
        kind="error",
        reason=(
            f"The workers were started {entered.starts - 1} times with no checkpoint between "
            f"(cluster.retries = {plan.cluster.retries}). What ended them first: {first}. The same "
            "command goes on from the newest checkpoint."
        ),
    )


def _open_reader(plan: TrainPlan, rows: tuple[int, int]) -> ActorReader | None:
    if plan.cluster.serving == "local":
        return None
    opening = partial(
        open_documents,
        plan.store,
        growing=bool(plan.building),
        cache=plan.cache,
        cache_bytes=plan.cache_bytes,
    )
    return ActorReader(opening, plan.layout, rows)


def launch_ray(
    plan: TrainPlan, *, on_news: Callable[[News], None], stop_reason: Callable[[], str]
) -> Verdict:
    """Train `plan` with `plan.cluster.workers` workers on the Ray that is already initialised.

    Args:
        plan: The run.
        on_news: Called a few times a second with what the workers reported.
        stop_reason: Asked as often; a reason makes the run stop after the current step.

    Raises:
        ConfigError: The cluster cannot hold the workers.
    """
    use_gpu = _check_resources(plan)
    board: Any = BoardActor.remote()
    with _short_folder() as storage:
        for number in itertools.count(1):
            fit = _Fit(plan, board, storage=storage, name=f"fit-{number}", use_gpu=use_gpu)
            verdict = fit.watch(on_news, stop_reason)
            on_news(ray.get(board.drain.remote()))
            if verdict is not None:
                return verdict
            # Ray Train's controller died; our checkpoints do not depend on it. Nobody else frees
            # the slots of its workers, and the next fit() would wait for them without end.
            for place in ray.get(board.take_places.remote()):
                remove_placement_group(place)
            entered: Entered = ray.get(board.enter.remote(-1, None, None))
            if entered.starts > plan.cluster.retries + 1:
                return gave_up(plan, entered)
    raise AssertionError("unreachable")


class _Fit:
    """One call of Ray Train's fit(), in a thread: in the main thread it would take our SIGINT."""

    def __init__(
        self, plan: TrainPlan, board: Any, *, storage: str, name: str, use_gpu: bool
    ) -> None:
        self._plan = plan
        self._board = board
        self._trainer = ray.train.torch.TorchTrainer(
            _work,
            train_loop_config={"plan": plan, "board": board},
            scaling_config=ray.train.ScalingConfig(
                num_workers=plan.cluster.workers, use_gpu=use_gpu
            ),
            run_config=ray.train.RunConfig(
                name=name,
                storage_path=storage,
                failure_config=ray.train.FailureConfig(max_failures=-1),
            ),
            torch_config=ray.train.torch.TorchConfig(
                timeout_s=int(plan.cluster.hang_timeout_s) or 1
            ),
        )
        self._result: list[Any] = []
        self._error: list[BaseException] = []

    def _fit(self) -> None:
        try:
            self._result.append(self._trainer.fit().return_value)
        except BaseException as error:  # noqa: BLE001 - carried to the watching thread
            self._error.append(error)

    def watch(
        self, on_news: Callable[[News], None], stop_reason: Callable[[], str]
    ) -> Verdict | None:
        """Follow the workers to their verdict; None asks for another fit, its controller died."""
        thread = threading.Thread(target=self._fit, name="fit", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL_S)
            if reason := stop_reason():
                ray.get(self._board.ask_stop.remote(reason))  # each time: the board may be new
            news: News = ray.get(self._board.drain.remote())
            on_news(news)
            if news.silent_s > self._plan.cluster.hang_timeout_s:
                self._end_hung_workers(on_news, news.silent_s)
        if self._error:
            on_news(News(notes=[f"Ray Train ended the workers: {_first_line(self._error[0])}."]))
            return None
        return self._result[0]

    def _end_hung_workers(self, on_news: Callable[[News], None], silent_s: float) -> None:
        workers = ray.get(self._board.take_workers.remote())
        if not workers:
            return
        on_news(
            News(notes=[f"No step for {silent_s:.0f} s: the workers are ended and start again."])
        )
        for worker in workers:
            ray.kill(worker)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _check_resources(plan: TrainPlan) -> bool:
    """Whether the workers get GPUs.

    Raises:
        ConfigError: The cluster has too few GPUs or CPUs.
    """
    has = ray.cluster_resources()
    workers = plan.cluster.workers
    gpus = int(has.get("GPU", 0))
    if plan.cluster.gpus == "yes" and gpus < workers:
        raise ConfigError(
            f"cluster.workers = {workers} want a GPU each (cluster.gpus = 'yes'), the Ray cluster "
            f"has {gpus}. Lower cluster.workers, or set cluster.gpus = 'auto'."
        )
    cpus = int(has.get("CPU", 0))
    if cpus < workers:
        raise ConfigError(
            f"cluster.workers = {workers} want a CPU each, the Ray cluster has {cpus}. Lower "
            "cluster.workers, or join a larger cluster with cluster.address."
        )
    return plan.cluster.gpus != "no" and gpus >= workers


@contextmanager
def _short_folder() -> Iterator[str]:
    """A folder for what Ray Train writes, removed afterwards; Ray refuses long socket paths."""
    path = tempfile.mkdtemp(prefix="lr-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
