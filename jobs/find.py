"""From the word RUN on a command line to a run's folder, its config and its checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.config import RunConfig, read_config
from pipeline.files import exists, join, local_path
from trainer.checkpoint import NAME, CheckpointError, faults_of, newest_of
from trainer.errors import ConfigError
from trainer.load import Loaded, best_device, is_weights_folder, load_folder, load_model
from trainer.remote_run import open_run
from trainer.run_folder import CHECKPOINTS, DRIVER, RunFolder

RUNS = "runs"


def is_run(word: str) -> bool:
    """Whether `word` names a run."""
    if local_path(word) is None:
        return exists(join(word, "config.json"))
    return any((place / "config.json").is_file() for place in _places(word))


def is_checkpoint(word: str) -> bool:
    """Whether `word` is the folder of a checkpoint."""
    if NAME.fullmatch(Path(word).name) is None:
        return False
    if local_path(word) is not None:
        return Path(word).is_dir()
    return Path(word).parent.name == CHECKPOINTS and exists(word)


def checkpoint_at(word: str) -> Path:
    """The folder of the checkpoint `word`; of one at a URL, its copy here."""
    if local_path(word) is not None:
        return Path(word)
    run, _, name = word.rstrip("/").rpartition(f"/{CHECKPOINTS}/")
    folder = open_run(run)
    folder.refresh()
    return folder.checkpoints / name


def _places(word: str) -> list[Path]:
    return [Path(word), Path(RUNS) / word]


def is_driven(word: str) -> bool:
    """Whether `word` names a run, be it that its store is still built and it has no config yet."""
    if local_path(word) is None:
        return is_run(word) or exists(join(word, DRIVER))
    return is_run(word) or any((place / DRIVER).is_file() for place in _places(word))


def find_driven(word: str) -> RunFolder:
    """The run that `is_driven` sees.

    Raises:
        ConfigError: It sees none.
    """
    if is_run(word) or not is_driven(word):
        return find_run(word)
    if local_path(word) is None:
        return open_run(word)
    return RunFolder(next(one for one in _places(word) if (one / DRIVER).is_file()).resolve())


def find_run(word: str) -> RunFolder:
    """The run that `word` names: a folder, or a name under runs/.

    Raises:
        ConfigError: Neither holds a run.
    """
    if local_path(word) is None and is_run(word):
        folder = open_run(word)
        folder.refresh()
        return folder
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
        "folder": folder.place.rpartition("/")[0],
        "name": folder.path.name,
    }
    return read_config(base=base, sets=sets, environment=environment)


def find_checkpoint(word: str) -> Path:
    """The checkpoint that `word` names: its folder, or the newest whole one of a run.

    Raises:
        ConfigError: There is none.
        CheckpointError: The one that was named is damaged.
    """
    if is_checkpoint(word):
        path = checkpoint_at(word).resolve()
        if wrong := faults_of(run_of(path), path):
            raise CheckpointError(f"{'; '.join(wrong)}. Take an older checkpoint beside it.")
        return path
    folder = find_run(word)
    newest, passed = newest_of(folder, folder.attempts())
    if newest is None:
        told = f" ({'; '.join(passed)})" if passed else ""
        raise ConfigError(
            f"{folder.place} has no whole checkpoint yet{told}. `longrow resume` goes on with it."
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
    return open_run(checkpoint.parent.parent)


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

    @property
    def shown(self) -> str:
        """Its path, or the URL of what is a copy here."""
        return self.folder.named(str(self.path)) if self.folder else str(self.path)


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
