"""When a store is built beside its training, and what a failure of that build means."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.beside import Beside
from jobs.config import RunConfig, read_config
from jobs.drive import drive
from jobs.entry import Exit
from jobs.prepare import _why_first, build_and_drive
from pipeline.errors import DataError
from pipeline.store import Store
from tests.tiny_runs import TOML
from trainer.errors import ConfigError


def config(tmp_path: Path, *sets: str) -> RunConfig:
    store = () if any("mixture" in one for one in sets) else (f"data.store={tmp_path / 'store'}",)
    named = ("run.name=run", f"run.folder={tmp_path}", "rows.shuffle=none", *store, *sets)
    return read_config(base={}, sets=named, environment={})


def test_a_run_that_ends_by_its_evaluations_waits_for_the_store(tmp_path: Path) -> None:
    assert _why_first(config(tmp_path)) == ""
    patient = config(tmp_path, "evaluate.patience=2", "evaluate.every=5")
    assert "evaluate.patience" in _why_first(patient)


def test_a_mixture_is_no_store_to_build(tmp_path: Path) -> None:
    mixture = 'data.mixture=[{store = "a", weight = 1}, {store = "b", weight = 2}]'
    with pytest.raises(ConfigError, match=r"data\.mixture reads several that are finished"):
        build_and_drive(config(tmp_path, mixture), ["corpus"], resume="auto")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("bad records"), Exit.BAD_DATA),
        (OSError(28, "No space left on device"), Exit.FAILED),
        (ConfigError("no such key"), Exit.BAD_USE),
    ],
)
def test_a_failed_build_ends_with_the_code_of_its_error(
    tmp_path: Path, error: Exception, code: Exit
) -> None:
    build = Beside(config(tmp_path), ["corpus"], "tokenizer")
    assert (build.failure(), build.exit_code()) == ("", Exit.DONE)
    build._error = error
    assert build.failure()
    assert build.exit_code() is code


def test_a_run_that_its_build_stops_ends_with_the_code_of_the_build(
    tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Beside(config(tmp_path), ["corpus"], "tokenizer")
    whole = Store.open(str(tiny_store))
    monkeypatch.setattr(build, "store", SimpleNamespace(whole=whole), raising=False)
    build._error = OSError(28, "No space left on device")
    text = TOML.format(folder=tmp_path, store=tiny_store)
    sets = ("cluster.launcher=local", "tracking.uri=off", "trainer.steps=1000000")
    read = read_config(base=tomllib.loads(text), sets=sets, environment={})
    driven = drive(read, resume="auto", build=build)
    assert driven.code is Exit.FAILED
    assert "The build of the store failed. " in driven.message
