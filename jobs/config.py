"""What a run is: one TOML file, checked whole before anything starts, never changed.

    layers: defaults < file < environment < --set      flat: section.key -> value and its source
    check:  unknown keys, types, ranges, sections together; every mistake is told at once
    RunConfig: one frozen dataclass a section, each owned by the folder that uses it
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from jobs.toml import to_toml
from model.config import ModelConfig
from pipeline.build import BuildSettings
from pipeline.rows import Layout
from pipeline.tokenizer import TokenizerSettings
from trainer.errors import ConfigError
from trainer.settings import (
    CheckpointSettings,
    ClusterSettings,
    EvaluateSettings,
    OptimizerSettings,
    TrackingSettings,
    TrainerSettings,
)

ENVIRONMENT_PREFIX = "LONGROW__"
# A key that nobody gave takes the value of another one.
FOLLOWS = {
    "rows.seed": "run.seed",
    "tokenizer.seed": "run.seed",
    "model.vocab_size": "tokenizer.vocab_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run is called and where it lives.

    Attributes:
        name: The run's folder under `folder`, and its name in MLflow.
        folder: Local folder or URL that holds runs.
        seed: Of everything drawn: weights, dropout, document order, the tokenizer's sample.
    """

    name: str = "run"
    folder: str = "runs"
    seed: int = 1

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", self.name):
            raise ConfigError(
                f"run.name = {self.name!r} must be of letters, digits, `.`, `_` and `-`, and not "
                "begin with a `.`: it names a folder."
            )
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"run.seed = {self.seed} must lie between 0 and 2**63 - 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings(BuildSettings):
    """The store a run reads, and the corpus it is built from where it is still missing.

    The keys of BuildSettings belong to this section too.

    Attributes:
        store: Local folder or URL of the store.
        inputs: Files, folders, globs or URLs of the corpus.
        tokenizer: File or URL of a tokenizer; empty trains one as [tokenizer] says.
        workers: Actors that build the store; 0 takes one a core.
    """

    store: str = ""
    inputs: tuple[str, ...] = ()
    tokenizer: str = ""
    workers: int = 0

    def build(self) -> BuildSettings:
        """The part that decides a store's content."""
        return BuildSettings(**{f.name: getattr(self, f.name) for f in fields(BuildSettings)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All that a run is told, section by section."""

    run: RunSettings
    data: DataSettings
    rows: Layout
    tokenizer: TokenizerSettings
    model: ModelConfig
    trainer: TrainerSettings
    optimizer: OptimizerSettings
    evaluate: EvaluateSettings
    checkpoint: CheckpointSettings
    tracking: TrackingSettings
    cluster: ClusterSettings

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The resolved config as JSON types; `from_dict` reads it back."""
        return json.loads(json.dumps(asdict(self)))

    def to_toml(self) -> str:
        """The resolved config as a file that `read_config` reads back."""
        return to_toml(self.to_dict())


@dataclass(frozen=True, slots=True)
class Given:
    """A value and who gave it; `text` as typed where it came as a word and not from a file."""

    value: Any
    source: str
    text: str | None = None


def read_config(
    path: Path | None = None,
    *,
    sets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    base: Mapping[str, Mapping[str, Any]] | None = None,
) -> RunConfig:
    """Read a run's config, each layer over the one before.

    Args:
        path: The run's TOML file.
        sets: `section.key=value`; the value is TOML, or text where it is no TOML.
        environment: Of the process; LONGROW__SECTION__KEY is read, other names are not.
        base: Sections below the file: the demo's own values, or those of a checkpoint.

    Raises:
        ConfigError: One line for each mistake, of all layers.
    """
    mistakes: list[str] = []
    given = _flat(base or {}, "base", mistakes)
    if path is not None:
        given |= _flat(_toml(path), str(path), mistakes)
    given |= _of_environment(environment or {})
    given |= _of_sets(sets, mistakes)
    return _checked(given, mistakes)


def from_dict(tables: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Read back what `RunConfig.to_dict` gave.

    Raises:
        ConfigError: One line for each mistake.
    """
    return read_config(base=tables)


@cache
def keys() -> dict[str, Any]:
    """Every key of a run's config, as section.key, with its type."""
    return {
        f"{section}.{field.name}": get_type_hints(kind)[field.name]
        for section, kind in get_type_hints(RunConfig).items()
        for field in fields(kind)
    }


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file. Name the run's TOML file.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from error


def _flat(tables: Mapping[str, Any], source: str, mistakes: list[str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for section, table in tables.items():
        if isinstance(table, Mapping):
            given |= {f"{section}.{key}": Given(value, source) for key, value in table.items()}
        else:
            mistakes.append(_unknown(section, source))
    return given


def _of_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."): _word(text, name)
        for name, text in sorted(environment.items())
        if name.startswith(ENVIRONMENT_PREFIX)
    }


def _of_sets(sets: Sequence[str], mistakes: list[str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for word in sets:
        key, equals, text = word.partition("=")
        if equals and "." in key:
            given[key.strip()] = _word(text.strip(), "--set")
        else:
            mistakes.append(f"--set {word}: write it as --set section.key=value.")
    return given


def _word(text: str, source: str) -> Given:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return Given(text, source, text)
    return Given(table["value"] if set(table) == {"value"} else text, source, text)


def _checked(given: Mapping[str, Given], mistakes: list[str]) -> RunConfig:
    mistakes += [_unknown(key, g.source) for key, g in given.items() if key not in keys()]
    values: dict[str, Any] = {}
    for key, hint in keys().items():
        if key in given:
            try:
                values[key] = _typed(hint, given[key])
            except ValidationError as error:
                mistakes.append(_mistyped(key, given[key], error))
    for key, other in FOLLOWS.items():
        if key not in given:
            values[key] = values.get(other, _defaults()[other])
    sections: dict[str, Any] = {}
    for section, kind in get_type_hints(RunConfig).items():
        mine = {k.partition(".")[2]: v for k, v in values.items() if k.startswith(f"{section}.")}
        absent = [name for name in _required(kind) if name not in mine]
        if absent:
            wanted = [f"{section}.{n}" for n in absent if f"{section}.{n}" not in given]
            mistakes += [f"{key} is missing and has no default: give it." for key in wanted]
            continue
        try:
            sections[section] = kind(**mine)
        except ValueError as error:
            mistakes += _out_of_range(section, kind, mine, error)
    if not mistakes:
        mistakes += _together(**sections)
    if mistakes:
        raise ConfigError("\n".join(dict.fromkeys(mistakes)))
    return RunConfig(**sections)


def _typed(hint: Any, given: Given) -> Any:
    adapter = TypeAdapter(hint)
    # Strict and by way of JSON: "3" is no integer and true no 1, but a list may fill a tuple.
    try:
        return adapter.validate_json(json.dumps(given.value, default=str), strict=True)
    except ValidationError:
        if given.text is None or hint is not str:
            raise
        return given.text  # --set run.name=2024 means the text


def _mistyped(key: str, given: Given, error: ValidationError) -> str:
    first = error.errors()[0]
    inside = "".join(f"[{place}]" for place in first["loc"] if isinstance(place, int))
    told = first["msg"].replace("Input should be", "must be")
    value = json.dumps(given.value, default=str, ensure_ascii=False)
    return f"{key}{inside} = {value} ({given.source}): {told}."


def _out_of_range(
    section: str, kind: Any, values: Mapping[str, Any], whole: ValueError
) -> Iterator[str]:
    """Each value that is out of range by itself; else what the section as a whole said."""
    required = {name: values[name] for name in _required(kind)}
    found = False
    for name, value in values.items():
        try:
            kind(**{**required, name: value})
        except ValueError as error:
            found = True
            yield _named(section, error)
    if not found:
        yield _named(section, whole)


def _named(section: str, error: ValueError) -> str:
    message = str(error)
    return message if f"{section}." in message else f"[{section}] {message}"


def _unknown(key: str, source: str) -> str:
    near = _nearest(key, keys()) or _nearest(key, {k.partition(".")[0] for k in keys()})
    return f"{key} ({source}) is unknown" + (f": did you mean {near}?" if near else ".")


def _nearest(key: str, known: Iterable[str]) -> str | None:
    # The last name first: `optimizer.steps` means `trainer.steps`, which is far in letters.
    last = key.rpartition(".")[2]
    same = [name for name in known if "." in key and name.rpartition(".")[2] == last]
    close = same or difflib.get_close_matches(key, sorted(known), n=1)
    return close[0] if close else None


def _together(*, rows: Layout, trainer: TrainerSettings, cluster: ClusterSettings, **_: Any) -> Iterator[str]:
    """What only several sections together can tell."""
    parts = cluster.workers * trainer.accumulation
    if cluster.launcher == "ray" and rows.rows % parts:
        yield ""


@cache
def _defaults() -> dict[str, Any]:
    return {
        f"{section}.{field.name}": field.default
        for section, kind in get_type_hints(RunConfig).items()
        for field in fields(kind)
        if field.default is not MISSING
    }


def _required(kind: Any) -> list[str]:
    return [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
