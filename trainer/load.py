"""A checkpoint as a model to score or generate with: weights only, frozen, no optimizer."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from model.config import ModelConfig
from model.transformer_xl import TransformerXL
from pipeline.store import Store
from trainer.checkpoint import CheckpointError, load_weights, read_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A trained model and what it was trained on.

    Attributes:
        model: On `device`, in evaluation mode, without gradients.
        step: Steps it was trained for.
        plan: The run's plan as the checkpoint holds it, in JSON types.
    """

    model: TransformerXL
    step: int
    plan: dict[str, Any]

    def open_store(self) -> Store:
        """The store it was trained on.

        Raises:
            CheckpointError: Another store lies there now.
            DataError: It cannot be read.
        """
        store = Store.open(self.plan["store"])
        if store.fingerprint != self.plan["store_fingerprint"]:
            raise CheckpointError(
                f"{self.plan['store']} has fingerprint {store.fingerprint[:12]}, the checkpoint "
                f"was trained on {self.plan['store_fingerprint'][:12]}: it was rebuilt since."
            )
        return store


def load_model(checkpoint: Path, *, device: torch.device) -> Loaded:
    """Load the weights of `checkpoint`.

    Raises:
        CheckpointError: It does not hold them as its config says.
    """
    state = read_state(checkpoint)
    told: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in state["plan"]["model"].items()
    }
    known = {field.name for field in fields(ModelConfig)}
    if unknown := sorted(set(told) - known):
        raise CheckpointError(
            f"{checkpoint}/state.json has model settings this version does not know: "
            f"{', '.join(unknown)}. Take the version that wrote it."
        )
    model = TransformerXL(ModelConfig(**told)).to(device)
    load_weights(checkpoint, model)
    return Loaded(
        model=model.eval().requires_grad_(requires_grad=False),
        step=state["step"],
        plan=state["plan"],
    )


def best_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
