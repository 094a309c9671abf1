"""A trained model to score or generate with: weights only, frozen, no optimizer.

It comes from a checkpoint, or from a folder of weights, as `longrow export` and `import-weights`
write them: model.safetensors and model.json; tokenizer.model and origin.json where they are known.
"""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from model.config import ModelConfig, ModelError
from model.transformer_xl import TransformerXL
from model.weights import CONFIG, read_tensors, save_weights, set_weights
from model.weights import WEIGHTS as FOLDER_WEIGHTS
from model.weights import load_weights as read_folder
from pipeline.files import write_whole
from pipeline.layout import Layout
from pipeline.store import Store
from pipeline.tokenizer import Tokenizer
from trainer.checkpoint import AVERAGE, WEIGHTS, CheckpointError, load_weights, read_state
from trainer.errors import ConfigError

ORIGIN = "origin.json"
TOKENIZER = "tokenizer.model"
# What weights may be trained on with in another way than before; the rest says what they mean.
FREE = {"memory", "dropout", "attention_dropout", "clamp_len", "same_length"} | {
    *("init_std", "proj_init_std")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A trained model and what it was trained on.

    Attributes:
        model: On `device`, in evaluation mode, without gradients.
        step: Steps it was trained for; 0 where nobody knows.
        layout: Rows and segment of its training, or the usual ones.
        seed: Of its run.
        store: Where its documents are; empty where nobody knows.
        store_fingerprint: What that store must have; empty takes any.
        tokenizer_sha256: What the store's tokenizer must have; empty takes any.
        tokenizer_file: Its tokenizer, where it does not come from the store.
    """

    model: TransformerXL
    step: int
    layout: Layout
    seed: int = 0
    store: str = ""
    store_fingerprint: str = ""
    tokenizer_sha256: str = ""
    tokenizer_file: str = ""

    def with_store(self, store: str) -> "Loaded":
        """The same model with other documents; they must be of its tokenizer."""
        return replace(self, store=store, store_fingerprint="", tokenizer_file="")

    def open_store(self) -> Store:
        """The store it was trained on, or was given.

        Raises:
            ConfigError: It has none.
            ModelError: It is of another tokenizer.
            CheckpointError: Another store lies there now.
            DataError: It cannot be read.
        """
        if not self.store:
            raise ConfigError(
                "These weights do not say what they were trained on: name a store of their "
                "tokenizer with --store."
            )
        store = Store.open(self.store)
        if self.store_fingerprint and store.fingerprint != self.store_fingerprint:
            raise CheckpointError(
                f"{self.store} has fingerprint {store.fingerprint[:12]}, the checkpoint "
                f"was trained on {self.store_fingerprint[:12]}: it was rebuilt since."
            )
        other = self.tokenizer_sha256 and store.manifest.tokenizer != self.tokenizer_sha256
        if other or store.vocab_size != self.model.config.vocab_size:
            raise ModelError(
                f"{self.store} has {store.vocab_size:,} token ids of tokenizer "
                f"{store.manifest.tokenizer[:12]}, the model {self.model.config.vocab_size:,} of "
                f"{self.tokenizer_sha256[:12] or 'one it does not name'}: build the store with the "
                "model's tokenizer."
            )
        return store

    def tokenizer(self) -> Tokenizer:
        """Its tokenizer.

        Raises:
            As `open_store`.
        """
        if self.tokenizer_file:
            return Tokenizer.load(self.tokenizer_file)
        return self.open_store().tokenizer()


def load_model(checkpoint: Path, *, device: torch.device) -> Loaded:
    """Load the weights of `checkpoint`; their moving average where the run keeps one.

    Raises:
        CheckpointError: It does not hold them as its config says.
    """
    state = read_state(checkpoint)
    plan = state["plan"]
    told: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in plan["model"].items()
    }
    known = {field.name for field in fields(ModelConfig)}
    if unknown := sorted(set(told) - known):
        raise CheckpointError(
            f"{checkpoint}/state.json has model settings this version does not know: "
            f"{', '.join(unknown)}. Take the version that wrote it."
        )
    model = TransformerXL(ModelConfig(**told)).to(device)
    load_weights(checkpoint, model, file=_best_of(checkpoint))
    return Loaded(
        model=model.eval().requires_grad_(requires_grad=False),
        step=state["step"],
        layout=Layout(**plan["layout"]),
        seed=plan["seed"],
        **{name: plan[name] for name in ("store", "store_fingerprint", "tokenizer_sha256")},
    )


def is_weights_folder(folder: Path) -> bool:
    """Whether `folder` holds weights by our names, and is no checkpoint."""
    return (folder / CONFIG).is_file() and (folder / FOLDER_WEIGHTS).is_file()


def load_folder(folder: Path, *, device: torch.device) -> Loaded:
    """Load a folder of weights.

    Raises:
        ModelError: A file is damaged, or of another config.
    """
    model = read_folder(folder, device=device).eval().requires_grad_(requires_grad=False)
    path = folder / ORIGIN
    origin: dict[str, Any] = (
        json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"step": 0}
    )
    layout = Layout(**origin.pop("layout", {}))
    tokenizer = folder / TOKENIZER
    return Loaded(
        model=model,
        layout=layout,
        tokenizer_file=str(tokenizer) if tokenizer.is_file() else "",
        **origin,
    )


def export_folder(loaded: Loaded, folder: Path) -> None:
    """Write a folder of weights that `load_folder` reads."""
    save_weights(loaded.model, folder)
    origin = {
        "step": loaded.step,
        "seed": loaded.seed,
        "layout": {field.name: getattr(loaded.layout, field.name) for field in fields(Layout)},
        "store": loaded.store,
        "store_fingerprint": loaded.store_fingerprint,
        "tokenizer_sha256": loaded.tokenizer_sha256,
    }
    write_whole(str(folder / ORIGIN), (json.dumps(origin, indent=1) + "\n").encode())
    if loaded.tokenizer_file or loaded.store:
        write_whole(str(folder / TOKENIZER), loaded.tokenizer().model_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Where the weights of a run that was begun with `run.init` come from.

    Attributes:
        run: The run, or the folder where no run is known.
        step: Steps they were trained for there.
        mlflow_run_id: That run in MLflow; empty where it has none.
        tokenizer_sha256: Of its store; empty where nobody knows.
        model: Its ModelConfig as JSON has it.
    """

    run: str
    step: int
    mlflow_run_id: str = ""
    tokenizer_sha256: str = ""
    model: dict[str, Any] = field(default_factory=dict)


def parent_of(path: Path) -> Parent:
    """What a checkpoint, or a folder of weights, says of its origin."""
    if is_weights_folder(path):
        file = path / ORIGIN
        told = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return Parent(
            run=path.name,
            step=told.get("step", 0),
            tokenizer_sha256=told.get("tokenizer_sha256", ""),
            model=json.loads((path / CONFIG).read_text(encoding="utf-8")),
        )
    state = read_state(path)
    return Parent(
        run=Path(state["plan"]["folder"]).name,
        step=state["step"],
        mlflow_run_id=state["mlflow_run_id"],
        tokenizer_sha256=state["identity"]["tokenizer.sha256"],
        model=state["plan"]["model"],
    )


def check_initial(init: str, model: ModelConfig, *, tokenizer_sha256: str) -> None:
    """See that a new run can begin with the weights of a checkpoint, or of a folder.

    Args:
        init: Its path.
        model: The new run's.
        tokenizer_sha256: Of the new run's store.

    Raises:
        ConfigError: There is nothing there, or it is of another tokenizer, or of another model.
    """
    path = Path(init)
    if not path.is_dir():
        raise ConfigError(f"run.init = {init!r} is not there. Name a checkpoint or its copy.")
    parent = parent_of(path)
    if parent.tokenizer_sha256 and parent.tokenizer_sha256 != tokenizer_sha256:
        raise ConfigError(
            f"{path} is of tokenizer {parent.tokenizer_sha256[:12]}, the run's store of "
            f"{tokenizer_sha256[:12]}: its weights know other tokens. Build the store with the "
            "tokenizer of the weights."
        )
    here = json.loads(json.dumps(asdict(model)))
    differ = [
        f"model.{key} is {value!r} there and {here[key]!r} here"
        for key, value in parent.model.items()
        if key in here and key not in FREE and value != here[key]
    ]
    if differ:
        raise ConfigError(
            f"{path} holds the weights of another model: {'; '.join(differ)}. Set these as there."
        )


def initial_weights(init: str, model: TransformerXL, *, tokenizer_sha256: str) -> None:
    """Put the weights of a checkpoint, or of a folder, into the model of a new run.

    Of a run that keeps a moving average of its weights these are the average.

    Args:
        init: Its path.
        model: The new run's.
        tokenizer_sha256: Of the new run's store.

    Raises:
        ConfigError: As `check_initial`.
        CheckpointError: They do not fit the model; of a folder, ModelError.
    """
    check_initial(init, model.config, tokenizer_sha256=tokenizer_sha256)
    path = Path(init)
    if is_weights_folder(path):
        set_weights(model, read_tensors(path / FOLDER_WEIGHTS))
    else:
        load_weights(path, model, file=_best_of(path))


def _best_of(checkpoint: Path) -> str:
    return AVERAGE if (checkpoint / AVERAGE).is_file() else WEIGHTS


def best_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
