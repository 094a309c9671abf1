"""Weights on disk: one safetensors file, and the config in JSON beside it. Nothing to execute."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from model.config import ModelConfig, ModelError
from model.transformer_xl import TransformerXL

WEIGHTS = "model.safetensors"
CONFIG = "model.json"


def config_to_json(config: ModelConfig) -> str:
    """Write a config down."""
    return json.dumps(asdict(config), indent=2) + "\n"


def config_from_json(text: str) -> ModelConfig:
    """Read a config; an unknown or missing name is refused.

    Raises:
        ModelError: It is not JSON of a ModelConfig.
    """
    try:
        values: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelError(f"A model's config is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ModelError(f"A model's config is a JSON {type(values).__name__}, wanted an object.")
    names = {field.name for field in fields(ModelConfig)}
    if set(values) != names:
        raise ModelError(
            f"A model's config lacks {sorted(names - set(values)) or 'nothing'} and has unknown "
            f"{sorted(set(values) - names) or 'nothing'}: it was written by another version."
        )
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return ModelConfig(**{**values, **lists})


def save_weights(model: TransformerXL, folder: Path) -> None:
    """Write weights and config into a folder; each file is old or new, never half."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / CONFIG, config_to_json(model.config).encode())
    save_tensors(model.state_dict(), folder / WEIGHTS)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors, under any names, as one safetensors file; it is old or new, never half."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    _replace(path, safetensors_bytes(whole))


def load_weights(folder: Path, *, device: torch.device | str = "cpu") -> TransformerXL:
    """Read a model that `save_weights` wrote.

    Raises:
        ModelError: A file is missing, damaged, or of another config.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(
                f"{folder} has no {name}: wanted a folder with {CONFIG} and {WEIGHTS}."
            )
    model = TransformerXL(config_from_json((folder / CONFIG).read_text(encoding="utf-8")))
    set_weights(model, read_tensors(folder / WEIGHTS))
    return model.to(device)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        ModelError: It is none, or damaged.
    """
    try:
        return load_safetensors(path.read_bytes())
    except SafetensorError as error:
        raise ModelError(
            f"{path} is not a whole safetensors file ({error}). Pickles are not read, for they can "
            "run code: convert them where they come from."
        ) from error


def set_weights(model: TransformerXL, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors into a model, which keeps its type and device.

    Raises:
        ModelError: A name or a shape is not the model's.
    """
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ModelError(
                f"Weight {name} has shape {found.get(name, 'none (it is missing)')}, and the "
                f"model's config wants {wanted.get(name, 'no such weight')}: "
                "the weights belong to another config."
            )
    model.load_state_dict(dict(tensors))


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
