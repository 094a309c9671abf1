"""What a run may be told about training: frozen, checked once, never changed.

Each class is one section of the run's TOML file (jobs/config.py puts them together).
"""

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from model.config import Backend
from pipeline.credentials import INSTEAD, credential_in
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# What torch's deterministic algorithms want of cuBLAS, in the environment before its first use.
DETERMINISTIC_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
NO_CREDENTIALS = (
    f"it would stand in configs, logs and MLflow. {INSTEAD} MLflow's own are "
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


def _require_finite(section: str, settings: "DataclassInstance") -> None:
    """No key of a section is infinite, or no number at all."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, float):
            _require(math.isfinite(value), f"{section}.{field.name} = {value} must be finite.")


def check_no_credentials(key: str, url: str) -> None:
    """Refuse a URL with a user, password or signature in it: it stands in configs, logs and MLflow.

    Raises:
        ConfigError: There is one; the message does not repeat it.
    """
    found = credential_in(url, user=True)
    _require(
        not found,
        f"{key} holds {found}: {NO_CREDENTIALS}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """How the steps are taken.

    Attributes:
        steps: Optimizer steps of the whole run.
        precision: Arithmetic of matrix products; softmax, loss and weights stay float32.
        attention: How attention is computed; all give the same numbers but for rounding. auto takes
            what is fastest on the device; chunked needs the least memory; plain is the slow
            definition; triton is a kernel for GPUs that was not run on one so far. One that fails
            where a run starts is replaced, and the run says so. On a CPU a row has the same bits
            whatever rows stand beside it, so with any number of workers, under auto, dense and
            chunked; not under plain and sdpa.
        accumulation: Pieces, by rows, in which a rank computes one step; each has its own memory.
        threads: Torch threads of a worker; 0 shares the machine's cores among the workers.
        deterministic: Torch's deterministic algorithms: on a GPU, bit-exact resumes for some speed.
        z_loss: Adds z_loss * log(Z)^2 to each target's loss, which keeps logits from drifting; 0 is
            off. 1e-4 is usual. The losses that are told are without it.
        spike_factor: Skips an update whose gradient norm is more than this times the usual one, as
            one that is not finite is skipped; 0 skips none. 10 is careful.
        profile: Steps of each attempt to profile, after its first few; each rank leaves a trace in
            the run's folder profile/, which chrome://tracing opens offline. 0 profiles none.
        peak_tflops: 10^12 operations a second that a worker's device can do at most, for
            train/model_flop_use; 0 knows common GPUs in bf16, and else leaves that metric out.
        average: Decay a step of a moving average of the weights, which is saved, and scored in the
            place of the weights; 0 keeps none. 0.999 is usual.
    """

    steps: int = 1_000
    precision: Literal["fp32", "bf16"] = "fp32"
    attention: Backend = "auto"
    accumulation: int = 1
    threads: int = 0
    deterministic: bool = False
    z_loss: float = 0.0
    spike_factor: float = 0.0
    average: float = 0.0
    profile: int = 0
    peak_tflops: float = 0.0

    def __post_init__(self) -> None:
        _require_finite("trainer", self)
        _require(self.steps > 0, f"trainer.steps = {self.steps} must be above 0.")
        _require(
            self.accumulation > 0, f"trainer.accumulation = {self.accumulation} must be above 0."
        )
        _require(self.z_loss >= 0, f"trainer.z_loss = {self.z_loss} must be 0 or more.")
        _require(
            self.spike_factor == 0 or self.spike_factor > 1,
            f"trainer.spike_factor = {self.spike_factor} must be 0 or above 1.",
        )
        _require(0 <= self.average < 1, f"trainer.average = {self.average} must lie in [0, 1).")
        for name in ("profile", "peak_tflops"):
            value = getattr(self, name)
            _require(value >= 0, f"trainer.{name} = {value} must not be negative.")
        _require(self.threads >= 0, f"trainer.threads = {self.threads} must not be negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW with linear warm-up and then a schedule.

    Attributes:
        learning_rate: Peak, reached at the end of the warm-up.
        warmup_steps: Steps from 0 to the peak.
        schedule: What follows: half a cosine or a line down to the last step, the inverse square
            root of the step, which needs no last step, or the peak for good.
        final_ratio: Learning rate at the last step, as a part of the peak; of cosine and linear.
        betas: AdamW's decay rates of the two moments.
        epsilon: AdamW's epsilon.
        weight_decay: Of projections; tables of tokens, position biases, gains and biases have none.
        clip: Largest global gradient norm; 0 never clips.
    """

    learning_rate: float = 2.5e-4
    warmup_steps: int = 100
    schedule: Literal["cosine", "linear", "inverse_sqrt", "constant"] = "cosine"
    final_ratio: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 0.25

    def __post_init__(self) -> None:
        _require_finite("optimizer", self)
        _require(
            self.learning_rate > 0,
            f"optimizer.learning_rate = {self.learning_rate} must be above 0.",
        )
        _require(
            self.warmup_steps >= 0,
            f"optimizer.warmup_steps = {self.warmup_steps} must not be negative.",
        )
        _require(
            0 <= self.final_ratio <= 1,
            f"optimizer.final_ratio = {self.final_ratio} must lie between 0 and 1.",
        )
        _require(
            all(0 <= beta < 1 for beta in self.betas),
            f"optimizer.betas = {list(self.betas)} must lie in [0, 1).",
        )
        _require(self.epsilon > 0, f"optimizer.epsilon = {self.epsilon} must be above 0.")
        _require(
            self.weight_decay >= 0,
            f"optimizer.weight_decay = {self.weight_decay} must not be negative.",
        )
        _require(self.clip >= 0, f"optimizer.clip = {self.clip} must not be negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSettings:
    """How the held-out documents are scored.

    Attributes:
        every: Steps between two evaluations during training; 0 evaluates at the end only.
        rows: Rows of the evaluation batch, of all workers together; 0 takes those of training.
        segment: Tokens a row reads at a time; 0 takes the segment of training.
        memory: Memory lengths to score with at the end of a run; empty takes the model's and 0.
        minutes: Minutes of training between two evaluations, beside `every`; 0 looks at no clock.
            Where one fell is written down, and a resume scores there again.
        metric: What is best of several evaluations, the lower the better.
        patience: Evaluations in a row without a new best value that end the run; 0 never ends it.
    """

    every: int = 0
    minutes: float = 0.0
    rows: int = 0
    segment: int = 0
    memory: tuple[int, ...] = ()
    metric: Literal["eval/loss", "eval/perplexity", "eval/bits_per_byte"] = "eval/loss"
    patience: int = 0

    def __post_init__(self) -> None:
        _require_finite("evaluate", self)
        for name in ("every", "minutes", "rows", "segment", "patience"):
            value = getattr(self, name)
            _require(value >= 0, f"evaluate.{name} = {value} must not be negative.")
        _require(
            self.patience == 0 or self.happens,
            f"evaluate.patience = {self.patience} counts evaluations, and there are none during "
            "training: set evaluate.every or evaluate.minutes, or leave evaluate.patience at 0.",
        )
        _require(
            all(length >= 0 for length in self.memory),
            f"evaluate.memory = {list(self.memory)} must not hold a negative length.",
        )

    @property
    def happens(self) -> bool:
        """Whether anything is scored before the end."""
        return self.every > 0 or self.minutes > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When a checkpoint is written and which are kept.

    Attributes:
        every: Steps between two checkpoints; the last step and a stop always write one.
        keep_last: Newest checkpoints to keep; at least 2, for the newest may turn out damaged.
        keep_every: Keeps those whose step is a multiple of this too; 0 keeps none for that.
        keep_best: Keeps so many of the best by evaluate.metric too, where the run is scored as it
            trains, and saves one when an evaluation finds the best value so far; 0 does neither.
        retries: Times that a save is tried again when the disk refuses, before the run fails.
    """

    every: int = 100
    keep_last: int = 3
    keep_every: int = 0
    keep_best: int = 1
    retries: int = 3

    def __post_init__(self) -> None:
        _require(self.every > 0, f"checkpoint.every = {self.every} must be above 0.")
        _require(
            self.keep_last >= 2, f"checkpoint.keep_last = {self.keep_last} must be at least 2."
        )
        for name in ("keep_every", "keep_best", "retries"):
            value = getattr(self, name)
            _require(value >= 0, f"checkpoint.{name} = {value} must not be negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSettings:
    """Where MLflow records the run.

    Attributes:
        uri: MLflow's tracking address; empty takes MLFLOW_TRACKING_URI, else a SQLite file beside
            the runs; "off" tracks nowhere, the run's folder has everything all the same.
        experiment: The experiment the run belongs to.
    """

    uri: str = ""
    experiment: str = "longrow"

    def __post_init__(self) -> None:
        check_no_credentials("tracking.uri", self.uri)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Where the workers run.

    Attributes:
        launcher: `ray` starts the workers by Ray Train; `local` trains in this process, or as the
            rank that torchrun's environment names, with no Ray.
        workers: World size under `ray`.
        address: A Ray cluster to join; empty starts one on this machine for the run.
        serving: Batches come from a Ray actor a rank, or are read in the worker; both are equal.
        gpus: A GPU for each worker; the default takes them if the cluster has enough.
        retries: Under `ray`: deaths of workers with no checkpoint between, before giving up.
        hang_timeout_s: Seconds without a step before `ray` ends the workers and starts them again;
            under `local`, before a rank gives up on the others. A save waits as long for the files
            of a rank, and 300 s at least; then it is tried again.
        start_timeout_s: Under `local`: seconds that a rank waits for the others to come.
    """

    launcher: Literal["ray", "local"] = "ray"
    workers: int = 1
    address: str = ""
    serving: Literal["actor", "local"] = "actor"
    gpus: Literal["auto", "yes", "no"] = "auto"
    retries: int = 3
    hang_timeout_s: float = 300.0
    start_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        _require_finite("cluster", self)
        _require(self.workers > 0, f"cluster.workers = {self.workers} must be above 0.")
        _require(self.retries >= 0, f"cluster.retries = {self.retries} must not be negative.")
        for name in ("hang_timeout_s", "start_timeout_s"):
            value = getattr(self, name)
            _require(value > 0, f"cluster.{name} = {value} must be above 0.")
