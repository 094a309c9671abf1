"""From the word RUN on a command line to a run's folder, its config and its checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.config import RunConfig, read_config
from trainer.checkpoint import NAME, CheckpointError, faults, newest_whole
from trainer.errors import ConfigError
from trainer.load import Loaded, best_device, is_weights_folder, load_folder, load_model
from trainer.run_folder import RunFolder

RUNS = "runs"


def is_run(word: str) -> bool:
    """Whether `word` names a run."""
    return any((place / "config.json").is_file() for place in _places(word))


def is_checkpoint(word: str) -> bool:
    """Whether `word` is the folder of a checkpoint."""
    return NAME.fullmatch(Path(word).name) is not None and Path(word).is_dir()


def _places(word: str) -> list[Path]:
    return [Path(word), Path(RUNS) / word]


def find_run(word: str) -> RunFolder:
    """The run that `word` names: a folder, or a name under runs/.

    Raises:
        ConfigError: Neither holds a run.
    """
    places = _places(word)
    for place in places:
        if (place / "config.json").is_file():
            return RunFolder(place.resolve())
    raise ConfigError(
        f"{word!r} is no run: neither {places[0]} nor {places[1]} has a config.json. Name a folder "
        f"that `longrow train` wrote, or its name under {RUNS}/."
    )


def config_of(
    folder: RunFolder, *, sets: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> RunConfig:
    """The config of a run, with changes; the run stays where it lies."""
    base = dict(folder.read_json("config.json") or {})
    base["run"] = base.get("run", {}) | {
        "folder": str(folder.path.parent),
        "name": folder.path.name,
    }
    return read_config(base=base, sets=sets, environment=environment)


def find_checkpoint(word: str) -> Path:
    """The checkpoint that `word` names: its folder, or the newest whole one of a run.

    Raises:
        ConfigError: There is none.
        CheckpointError: The one that was named is damaged.
    """
    path = Path(word)
    if is_checkpoint(word):
        if wrong := faults(path):
            raise CheckpointError(f"{'; '.join(wrong)}. Take an older checkpoint beside it.")
        return path.resolve()
    folder = find_run(word)
    newest, passed = newest_whole(folder.checkpoints, folder.attempts())
    if newest is None:
        told = f" ({'; '.join(passed)})" if passed else ""
        raise ConfigError(
            f"{folder.path} has no whole checkpoint yet{told}. `longrow resume` goes on with it."
        )
    return newest


def find_weights(word: str) -> Path:
    """The weights that `word` names: a folder of them, a checkpoint, or a run's newest whole one.

    Raises:
        As `find_checkpoint`.
    """
    return Path(word).resolve() if is_weights_folder(Path(word)) else find_checkpoint(word)


def run_of(checkpoint: Path) -> RunFolder:
    """The run that a checkpoint belongs to."""
    return RunFolder(checkpoint.parents[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A trained model, found by a word.

    Attributes:
        name: Of its checkpoint or folder, for titles.
        path: Of the same.
        loaded: The model.
        folder: Its run's folder; None where it belongs to none here.
        suffix: Of the files of its evaluation: empty with the settings that are its own.
    """

    name: str
    path: Path
    loaded: Loaded
    folder: RunFolder | None
    suffix: str = ""


def load(word: str, *, store: str = "") -> Found:
    """The model that `word` names: a run's newest whole checkpoint, one checkpoint, or a folder.

    Args:
        word: A run, a checkpoint, or a folder of weights.
        store: Other documents than those it was trained on.

    Raises:
        ConfigError: There is none.
        CheckpointError: It is damaged.
        ModelError: The same, of a folder of weights.
    """
    folder, device = None, best_device()
    if is_weights_folder(Path(word)):
        path = Path(word).resolve()
        loaded = load_folder(path, device=device)
    else:
        path = find_checkpoint(word)
        loaded = load_model(path, device=device)
        if (path.parents[1] / "config.json").is_file():
            folder = run_of(path)
    if store:
        loaded = loaded.with_store(store)
    return Found(name=path.name, path=path, loaded=loaded, folder=folder)
