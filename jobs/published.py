"""Weights as others publish them: a file read to tensors, without running anything in it."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.config import ModelConfig, ModelError
from model.reference import config_from_reference
from model.weights import read_tensors

_PARAM = "param/"  # of an archive that holds more than weights


def read_published(path: Path) -> dict[str, Tensor]:
    """Read a safetensors or npz file of weights, by the names it has.

    An archive that holds other things too marks its weights with `param/`. Numbers become float32.

    Raises:
        ModelError: It is a pickle, which could run code; or it is damaged, or not weights at all.
    """
    with _readable(path).open("rb") as file:
        head = file.read(9)
    if head[:2] == b"PK":
        tensors = _of_archive(path)
    elif head[8:] != b"{" and head[:1] == b"\x80" and head[1:2] in b"\x01\x02\x03\x04\x05":
        raise _pickle(path)
    else:
        tensors = read_tensors(path)
    marked = {name: x for name, x in tensors.items() if name.startswith(_PARAM)}
    named = {name.removeprefix(_PARAM): x for name, x in (marked or tensors).items()}
    for name, tensor in named.items():
        if not tensor.is_floating_point():
            raise ModelError(
                f"{path} holds {name} of {tensor.dtype}; weights are floating-point numbers. Give "
                "a file that holds a model's weights and nothing else."
            )
    return {name: tensor.float() for name, tensor in named.items()}


def read_settings(path: Path) -> ModelConfig:
    """Read the configuration published with a model: its names at the top, or under `config`.

    Raises:
        ModelError: It is not JSON, or does not describe a Transformer-XL.
    """
    try:
        told: Any = json.loads(_readable(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not JSON: {error}. Give the model's config.json.") from error
    if isinstance(told, dict) and isinstance(told.get("config"), dict):
        told = told["config"]
    if not isinstance(told, dict):
        raise ModelError(f"{path} holds a JSON {type(told).__name__}; wanted is an object.")
    try:
        return config_from_reference(told)
    except TypeError as error:
        raise ModelError(f"{path}: a setting has the wrong type ({error}).") from error


def _of_archive(path: Path) -> dict[str, Tensor]:
    try:
        names = zipfile.ZipFile(path).namelist()
    except zipfile.BadZipFile as error:
        raise ModelError(f"{path} is a damaged archive ({error}): copy it again.") from error
    if any(not name.endswith(".npy") for name in names):
        raise _pickle(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile, TypeError) as error:
        if "allow_pickle" in str(error):
            raise _pickle(path) from error
        raise ModelError(f"{path} cannot be read as npz ({error}): copy it again.") from error


def _pickle(path: Path) -> ModelError:
    return ModelError(
        f"{path} holds a pickle, as .bin, .pt and object arrays do, and reading one can run any "
        "code: it is refused. Where you trust it, load it and save its tensors as safetensors, or "
        "as npz of plain arrays, and import that."
    )


def _readable(path: Path) -> Path:
    if not path.is_file():
        raise ModelError(f"{path} is no file. Name a file of weights, then their configuration.")
    return path
