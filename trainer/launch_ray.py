"""Start a run's workers by Ray Train, and watch them (board_actor.py is how they talk).

Ray Train places the workers, sets up the process group and starts them again when one dies. What it
is not asked for: checkpoints (committed by the loop to the run's own folder), the stop (a flag on
the board, see board.py) and the verdict (returned by the training function and told to the board;
only deaths raise). Its controller may die or hang like any other process: fit() is called again.
"""

import itertools
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.exceptions import RayActorError
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.context import get_train_context
from ray.util import get_current_placement_group, remove_placement_group

from pipeline.errors import DataError
from pipeline.growing import open_documents
from pipeline.server_actor import ActorReader
from trainer.blame import first_line, is_collateral, tell, tell_death
from trainer.board import Entered, News, Verdict
from trainer.board_actor import Arrivals, BoardReporter, BoardWatch
from trainer.endings import ended_before_it_began, ended_without_workers, gave_up
from trainer.errors import ConfigError
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.remote_run import open_run
from trainer.settings import DETERMINISTIC_CUBLAS
from trainer.temp_folder import temp_folder

POLL_S = 0.25
BOARD_S = 30.0  # a board that does not answer for so long is replaced
QUIET_S = 15.0  # workers that say nothing for so long are not there
EARLY_S = 15.0  # from a stop without workers to the return of fit()
ENDING_S = 30.0  # from the workers' verdict to the return of fit()
# Read by the processes that Ray starts, so they must stand in the environment before ray.init().
ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a config keep their meaning
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # a death is seen, and an end, this soon
    **DETERMINISTIC_CUBLAS,
}


def _work(config: dict[str, Any]) -> Verdict:
    """What Ray Train runs in each worker."""
    plan: TrainPlan = config["plan"]
    board: Any = config["board"]
    rank = ray.train.get_context().get_world_rank()
    actor, place = ray.get_runtime_context().current_actor, get_current_placement_group()
    entered: Entered = ray.get(board.enter.remote(rank, actor, place))
    if entered.verdict is not None:  # it is all over: Ray Train has not heard of it
        return entered.verdict
    reporter = BoardReporter(board, drains=_drains)
    try:
        tired = entered.starts > plan.cluster.retries + 1
        verdict = gave_up(plan, entered) if tired else _train(plan, reporter)
    except Exception as error:
        where = _keep_error(plan, rank, traceback.format_exc())
        reporter.failed(f"{tell(rank, error)} ({where})", collateral=is_collateral(error))
        reporter.close()
        raise  # Ray Train starts the workers again
    reporter.close(verdict)
    return verdict


def _drains() -> str:
    """Why this worker's run must stop: Ray takes a node of it away; empty if it takes none."""
    # What Ray Train has told this worker. Its get_preemption_info() tells the same and is a barrier
    # of all workers, which would hold those that live when one has died.
    told = get_train_context().preemption_context.preemption_info
    if told is None:
        return ""
    return f"the node of rank {', '.join(map(str, told.preempted_ranks))} drains"


def _keep_error(plan: TrainPlan, rank: int, text: str) -> str:
    """Where the traceback is, or why it is nowhere: a full disk must not hide what happened."""
    try:
        return open_run(plan.folder).keep_error(rank, text, launch=plan.launch)
    except (OSError, DataError) as error:
        return f"its traceback could not be kept: {error}"


def _train(plan: TrainPlan, reporter: BoardReporter) -> Verdict:
    device = torch.device(ray.train.torch.get_device())
    group = Group(device=device, timeout_s=plan.cluster.hang_timeout_s)
    return train(plan, group, reporter, lambda rows: _open_reader(plan, rows))


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


class _Introduce(ControllerCallback):
    """Ray Train's controller tells the board who it is: else nobody could end it when it hangs."""

    def __init__(self, board: Any) -> None:
        self._board = board

    def after_controller_start(self, train_run_context: Any) -> None:  # noqa: ARG002
        self._board.enter_controller.remote(ray.get_runtime_context().current_actor)


class _Mourn(ray.train.UserCallback):
    """Ray Train's controller tells the board of workers that died and left no word themselves."""

    def __init__(self, board: Any) -> None:
        self._board = board

    def after_exception(
        self,
        run_context: Any,  # noqa: ARG002
        worker_exceptions: dict[int, Exception],
    ) -> None:
        for rank, error in worker_exceptions.items():
            failure = getattr(error, "health_check_failure", error)
            if isinstance(failure, RayActorError):
                self._board.lost.remote(tell_death(rank, str(failure)))


def launch_ray(
    plan: TrainPlan, *, on_news: Callable[[News], None], stop_reason: Callable[[], str]
) -> Verdict:
    """Train `plan` with `plan.cluster.workers` workers on the Ray that is already initialised.

    Args:
        plan: The run.
        on_news: Called a few times a second with what the workers reported.
        stop_reason: Asked as often; a reason makes the run stop after the current step, or at once
            while there are no workers.

    Raises:
        ConfigError: The cluster cannot hold the workers.
    """
    use_gpu = _check_resources(plan)
    board = BoardWatch(deadline_s=min(BOARD_S, plan.cluster.hang_timeout_s))
    if reason := stop_reason():
        return ended_before_it_began(plan, reason)
    deaths = 0  # of controllers, with no checkpoint between
    with temp_folder() as storage:
        for number in itertools.count(1):
            fit = _Fit(plan, board, storage=storage, name=f"fit-{number}", use_gpu=use_gpu)
            verdict = fit.watch(on_news, stop_reason)
            if verdict is not None:
                return verdict
            # The controller is gone; our checkpoints do not depend on it. Nobody else frees the
            # slots of its workers, and the next fit() would wait for them without end.
            fit.clear_away()
            deaths = 0 if fit.told_of_checkpoint else deaths + 1
            if deaths > plan.cluster.retries:
                return gave_up(plan, Entered(starts=deaths + 1, first_error=fit.error))
    raise AssertionError("unreachable")


class _Fit:
    """One call of Ray Train's fit(), in a thread: in the main thread it would take our SIGINT.

    Attributes:
        told_of_checkpoint: Whether a checkpoint was committed in it.
        error: What it ended with, if not with a verdict.
    """

    def __init__(
        self, plan: TrainPlan, board: BoardWatch, *, storage: str, name: str, use_gpu: bool
    ) -> None:
        self._plan = plan
        self._board = board
        callbacks: list[Any] = [_Introduce(board.actor), _Mourn(board.actor)]
        self._trainer = ray.train.torch.TorchTrainer(
            _work,
            train_loop_config={"plan": plan, "board": board.actor},
            scaling_config=ray.train.ScalingConfig(
                num_workers=plan.cluster.workers, use_gpu=use_gpu
            ),
            run_config=ray.train.RunConfig(
                name=name,
                storage_path=storage,
                failure_config=ray.train.FailureConfig(max_failures=-1),
                callbacks=callbacks,
            ),
            torch_config=ray.train.torch.TorchConfig(
                timeout_s=int(plan.cluster.hang_timeout_s) or 1
            ),
        )
        self._arrived = Arrivals()
        self._result: list[Any] = []
        self._ping: Any = None  # what the controller was asked when nothing moved
        self._ping_sent = 0.0
        self._ever_worked = False
        self.told_of_checkpoint = False
        self.error = ""

    def _fit(self) -> None:
        try:
            self._result.append(self._trainer.fit().return_value)
        except BaseException as error:  # noqa: BLE001 - carried to the watching thread
            self.error = first_line(error)

    def watch(
        self, on_news: Callable[[News], None], stop_reason: Callable[[], str]
    ) -> Verdict | None:
        """Follow the workers to their verdict; None asks for another fit, its controller died."""
        thread = threading.Thread(target=self._fit, name="fit", daemon=True)
        thread.start()
        verdict, ends = None, 0.0
        while thread.is_alive():
            thread.join(POLL_S)
            reason = stop_reason()
            news = self._drain(reason, wait_s=POLL_S)
            if news is None:
                continue
            on_news(news)
            if news.verdict is not None and verdict is None:
                verdict = news.verdict
                ends = time.monotonic() + min(ENDING_S, self._plan.cluster.hang_timeout_s)
            if verdict is not None:
                if time.monotonic() > ends:  # the controller hangs: what it would say is known
                    self.clear_away()
                    return verdict
            elif reason and (not self._arrived.workers or news.quiet_s > QUIET_S):
                self._end_early(thread)
                ending = ended_without_workers if self._ever_worked else ended_before_it_began
                return ending(self._plan, reason)
            else:
                self._end_what_hangs(on_news, news.silent_s)
        last = self._drain("", wait_s=BOARD_S) or News()
        on_news(last)
        verdict = self._result[0] if self._result else last.verdict or verdict
        if verdict is not None:
            return verdict
        on_news(News(notes=[f"Ray Train ended the workers: {self.error}."]))
        return None

    def _end_early(self, thread: threading.Thread) -> None:
        """End fit() however far it is: Ray ends the whole process if it is shut down in one."""
        until = time.monotonic() + EARLY_S
        while thread.is_alive() and time.monotonic() < until:
            self._drain("", wait_s=POLL_S)  # the controller, and workers, may still come
            self.clear_away()
            thread.join(POLL_S)

    def _drain(self, reason: str, *, wait_s: float) -> News | None:
        told = self._board.drain(reason, wait_s=wait_s)
        if told is None:
            return None
        news, arrivals = told
        self._arrived.workers.extend(arrivals.workers)
        self._ever_worked |= bool(arrivals.workers)
        self._arrived.places.extend(arrivals.places)
        self._arrived.controllers.extend(arrivals.controllers)
        self.told_of_checkpoint |= any(line["kind"] == "checkpoint" for line in news.lines)
        return news

    def _end_what_hangs(self, on_news: Callable[[News], None], silent_s: float) -> None:
        """End workers that no longer move, and a controller that does not start them again."""
        limit_s = self._plan.cluster.hang_timeout_s
        if silent_s <= limit_s:
            self._ping = None
            return
        if workers := list(self._arrived.workers):
            self._arrived.workers.clear()
            on_news(
                News(
                    notes=[f"No step for {silent_s:.0f} s: the workers are ended and start again."]
                )
            )
            for worker in workers:
                ray.kill(worker)
        if self._ping is None and self._arrived.controllers:
            self._ping_sent = time.monotonic()
            self._ping = self._arrived.controllers[-1].get_state.remote()
        elif self._ping is not None and time.monotonic() - self._ping_sent > limit_s:
            answered, _ = ray.wait([self._ping], timeout=0)
            self._ping = None
            if not answered:
                on_news(News(notes=["Ray Train's controller does not answer: it is ended."]))
                self._end_controllers()

    def _end_controllers(self) -> None:
        for controller in self._arrived.controllers:
            ray.kill(controller)

    def clear_away(self) -> None:
        """End the controller, if it is still there, and free the slots of its workers."""
        self._end_controllers()
        for place in self._arrived.places:
            if place is not None:
                remove_placement_group(place)


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
