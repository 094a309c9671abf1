"""Start a run's workers by Ray Train, and watch them: the only file of the trainer that knows Ray.

Ray Train places the workers, sets up the process group and starts them again when one dies. What it
is not asked for: checkpoints (committed by the loop to the run's own folder), the stop (a flag on
the board, see board.py) and the verdict (returned by the training function; only deaths raise).
"""

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from pipeline.server_actor import ActorReader
from pipeline.store import Store
from trainer.board import Board, News, Verdict
from trainer.checkpoint import checkpoints
from trainer.errors import ConfigError
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder

POLL_S = 0.25
START_TIMEOUT_S = 120.0
# Read by the processes that Ray starts, so they must stand in the environment before ray.init().
ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a config keep their meaning
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # a death is seen, and an end, this soon
}


@ray.remote(num_cpus=0)
class BoardActor:
    """Board behind Ray, and the workers that stand at it."""

    def __init__(self) -> None:
        self._board = Board()
        self._workers: list[Any] = []

    @ray.method
    def push(self, lines: list[dict[str, Any]], notes: list[str], moved: bool) -> str:
        return self._board.push(lines, notes, moved=moved)

    @ray.method
    def drain(self) -> News:
        return self._board.drain()

    @ray.method
    def ask_stop(self, reason: str) -> None:
        self._board.ask_stop(reason)

    @ray.method
    def register(self, worker: Any) -> None:
        self._workers.append(worker)

    @ray.method
    def take_workers(self) -> list[Any]:
        workers, self._workers = self._workers, []
        return workers


class BoardReporter:
    """A worker's side of the board: a thread carries lines up and the wish to stop down."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._lines: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._lock = threading.Lock()
        self._moved = True
        self._stop: Any = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="reporter", daemon=True)
        self._thread.start()

    def line(self, values: dict[str, Any]) -> None:
        with self._lock:
            self._lines.append(values)
            self._moved = True

    def note(self, sentence: str) -> None:
        with self._lock:
            self._notes.append(sentence)

    def beat(self) -> None:
        self._moved = True

    def stop_reason(self) -> str:
        return self._stop

    def close(self) -> None:
        """Carry the last lines up and end the thread."""
        self._closed.set()
        self._thread.join()

    def _carry(self) -> None:
        last = False
        while not last:
            last = self._closed.wait(POLL_S)
            with self._lock:
                lines, self._lines = self._lines, []
                notes, self._notes = self._notes, []
                moved, self._moved = self._moved, False
            said: Any = ray.get(self._board.push.remote(lines, notes, moved))
            self._stop = said or self._stop


def _work(config: dict[str, Any]) -> Verdict:
    """What Ray Train runs in each worker."""
    plan: TrainPlan = config["plan"]
    board: Any = config["board"]
    ray.get(board.register.remote(ray.get_runtime_context().current_actor))
    device = ray.train.torch.get_device()
    reporter = BoardReporter(board)
    try:
        group = Group(device=torch.device(device), timeout_s=plan.cluster.hang_timeout_s)
        return train(plan, group, reporter, lambda rows: _open_reader(plan, rows))
    finally:
        reporter.close()


def _open_reader(plan: TrainPlan, rows: tuple[int, int]) -> ActorReader | None:
    if plan.cluster.serving == "local":
        return None
    return ActorReader(partial(Store.open, plan.store), plan.layout, rows)


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
    board = BoardActor.remote()
    folder = RunFolder(plan.folder)
    fits, idle, reached = 0, 0, ""
    with _short_folder() as storage:
        while True:
            fits += 1
            fit = _Fit(plan, board, storage=storage, name=f"fit-{fits}", use_gpu=use_gpu)
            verdict = fit.watch(on_news, stop_reason)
            on_news(ray.get(board.drain.remote()))
            if verdict is not None:
                return verdict
            # Ray Train's controller died; our checkpoints do not depend on it.
            newest = max((path.name for path in checkpoints(folder.checkpoints)), default="")
            idle, reached = (idle + 1, reached) if newest == reached else (0, newest)
            if idle > plan.cluster.retries:
                return Verdict(
                    status="gave up",
                    kind="error",
                    reason=f"Ray Train ended {idle} times in a row with no checkpoint between.",
                )


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
        asked = ""
        while thread.is_alive():
            thread.join(POLL_S)
            if (reason := stop_reason()) and reason != asked:
                asked = reason
                ray.get(self._board.ask_stop.remote(reason))
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
