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
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from jobs.toml import to_toml
from model.config import ModelConfig
from pipeline.credentials import credential_in
from pipeline.layout import Layout, check_shares
from pipeline.mixture import Weighted, name_of
from pipeline.settings import BuildSettings, TokenizerSettings
from trainer.errors import ConfigError
from trainer.settings import (
    NO_CREDENTIALS,
    CheckpointSettings,
    ClusterSettings,
    EvaluateSettings,
    OptimizerSettings,
    TrackingSettings,
    TrainerSettings,
    check_no_credentials,
)

ENVIRONMENT_PREFIX = "LONGROW__"
# A key that nobody gave takes the value of another one.
FOLLOWS = {"rows.seed": "run.seed", "tokenizer.seed": "run.seed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run is called and where it lives.

    Attributes:
        name: The run's folder under `folder`, and its name in MLflow.
        folder: Local folder or URL that holds runs.
        seed: Of everything drawn: weights, dropout, document order, the tokenizer's sample.
        init: Checkpoint, or folder of weights, whose weights the run begins with; `--init` sets it.
    """

    name: str = "run"
    folder: str = "runs"
    seed: int = 0
    init: str = ""

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
        mixture: Several stores instead, each with `store` and `weight`: its share of the tokens.
        inputs: Files, folders, globs or URLs of the corpus.
        tokenizer: File or URL of a tokenizer; empty trains one as [tokenizer] says.
        workers: Actors that build the store; 0 takes one a core.
        train_while_building: Take the first steps as soon as their documents are built;
            `longrow train --build` sets it.
        cache: Folder that keeps the parts of a remote store on each machine; empty reads them into
            memory.
        cache_bytes: What the parts in the cache may hold together. Each process that reads may keep
            as much again open of parts that were removed since, and the disk is free when it ends.
    """

    store: str = ""
    mixture: tuple[Weighted, ...] = ()
    inputs: tuple[str, ...] = ()
    tokenizer: str = ""
    workers: int = 0
    train_while_building: bool = False
    cache: str = "~/.cache/longrow"
    cache_bytes: int = 20_000_000_000

    def __post_init__(self) -> None:
        # Named, for a slotted dataclass has no cell for super().
        BuildSettings.__post_init__(self)
        if self.workers < 0:
            raise ConfigError(
                f"data.workers = {self.workers} must not be negative. 0 takes one a core."
            )
        if self.cache_bytes < 1:
            raise ConfigError(
                f"data.cache_bytes = {self.cache_bytes} must be above 0. To keep no parts, set "
                'data.cache to "".'
            )
        mixed = [one.store for one in self.mixture]
        for url in (self.store, self.tokenizer, *self.inputs, *mixed):
            check_no_credentials("data", url)
        if self.mixture and (self.store or self.inputs):
            raise ConfigError(
                f"mixture names {len(mixed)} finished stores to read, and "
                f"data.{'store' if self.store else 'inputs'} is set too: leave that out, or the "
                "mixture."
            )

    @property
    def reads(self) -> str:
        """What the run reads, by the name that `Store.open` takes; empty where nothing is said."""
        if not self.mixture:
            return self.store
        return name_of([replace(one, store=_absolute(one.store)) for one in self.mixture])

    def build(self) -> BuildSettings:
        """The part that decides a store's content."""
        return BuildSettings(**{f.name: getattr(self, f.name) for f in fields(BuildSettings)})


def _absolute(store: str) -> str:
    """Workers may stand in another folder."""
    return store if "://" in store else str(Path(store).resolve())


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
    given = {"run.seed": Given(RunSettings().seed, "default")}
    given |= _flat(base or {}, "base", mistakes)
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
def sections() -> dict[str, Any]:
    """Every section of a run's config, with its class."""
    return get_type_hints(RunConfig)


@cache
def keys() -> dict[str, Any]:
    """Every key of a run's config, as section.key, with its type."""
    return {
        f"{section}.{field.name}": get_type_hints(kind)[field.name]
        for section, kind in sections().items()
        for field in fields(kind)
    }


def given_keys(sets: Sequence[str], environment: Mapping[str, str]) -> set[str]:
    """Every key that a person sets beside the file."""
    return {*_of_environment(environment), *_of_sets(sets, [])}


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
    ill = {key: found for key, one in given.items() if (found := _ill(one.value))}
    mistakes += [f"{key} ({given[key].source}) {found}" for key, found in ill.items()]
    given = {key: one for key, one in given.items() if key not in ill}
    mistakes += [_unknown(key, one.source) for key, one in given.items() if key not in keys()]
    tables: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    for key, hint in keys().items():
        section, _, name = key.partition(".")
        source = key if key in given else FOLLOWS.get(key, key)
        if source in given:
            try:
                tables[section][name] = _typed(hint, given[source])
            except ValidationError as error:
                mistakes.append(_mistyped(source, given[source], error))
    made = {
        section: _made(kind, section, tables[section], mistakes)
        for section, kind in sections().items()
    }
    if not mistakes:
        mistakes += _together(**made)
    if mistakes:
        raise ConfigError("\n".join(dict.fromkeys(mistakes)))
    return RunConfig(**made)


def _ill(value: Any) -> str:
    """What no value may hold, wherever in it: it is never repeated."""
    texts = list(_texts(value))
    if any("\0" in text for text in texts):
        return "holds a zero byte, which no path and no name can. Leave it out."
    found = next(filter(None, (credential_in(text, user=True) for text in texts)), "")
    return found and f"holds {found}: {NO_CREDENTIALS}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)


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
    places = [f"[{place}]" if isinstance(place, int) else f".{place}" for place in first["loc"]]
    inside = "".join(places) if places and places[0][0] == "[" else ""
    told = first["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
    value = json.dumps(given.value, default=str, ensure_ascii=False)
    return f"{key}{inside} = {value} ({given.source}): {told.removesuffix('.')}."


def _made(kind: Any, section: str, values: dict[str, Any], mistakes: list[str]) -> Any:
    """Build a section; a value it refuses is put down and left out, so that the next is found."""
    while True:
        try:
            return kind(**values)
        except ValueError as error:
            message = str(error).removeprefix(f"{section}.")
            named = message.partition(" ")[0]
            is_key = f"{section}.{named}" in keys()
            mistakes.append(f"{section}.{message}" if is_key else f"[{section}] {message}")
            if named not in values:
                return None
            values = {name: value for name, value in values.items() if name != named}


def _unknown(key: str, source: str) -> str:
    near = _nearest(key, keys()) or _nearest(key, sections())
    return f"{key} ({source}) is unknown" + (f": did you mean {near}?" if near else ".")


def _nearest(key: str, known: Iterable[str]) -> str | None:
    # The last name first: `optimizer.steps` means `trainer.steps`, which is far in letters.
    last = key.rpartition(".")[2]
    same = [name for name in known if "." in key and name.rpartition(".")[2] == last]
    close = same or difflib.get_close_matches(key, sorted(known), n=1)
    return close[0] if close else None


def _together(
    *,
    model: ModelConfig,
    rows: Layout,
    trainer: TrainerSettings,
    evaluate: EvaluateSettings,
    checkpoint: CheckpointSettings,
    cluster: ClusterSettings,
    **_others: Any,
) -> Iterator[str]:
    """What only several sections together can tell. Under torchrun the world size comes later."""
    if model.same_length and 0 in evaluate.memory:
        yield (
            "evaluate.memory holds 0, and model.same_length lets a query see `memory` keys: it "
            "would see none. Leave 0 out."
        )
    if checkpoint.keep_best > 1 and not evaluate.happens:
        yield (
            f"checkpoint.keep_best = {checkpoint.keep_best} wants the best of several evaluations, "
            "and there are none during training: set evaluate.every or evaluate.minutes, or leave "
            "it out."
        )
    if cluster.launcher == "local":
        return
    try:
        check_shares(rows.rows, world_size=cluster.workers, accumulation=trainer.accumulation)
    except ValueError as error:
        yield str(error)
    if evaluate.rows % cluster.workers:
        yield (
            f"evaluate.rows = {evaluate.rows} cannot be shared out evenly among {cluster.workers} "
            f"workers: take a multiple of {cluster.workers}, or 0 for the rows of training."
        )
