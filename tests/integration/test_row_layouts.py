"""Mixtures, padded documents and block shuffle work from `longrow train` to `longrow show`."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.build import build_store
from pipeline.settings import BuildSettings
from tests.command import code_of
from tests.tiny_runs import TOML
from trainer.run_folder import RunFolder

REST = """
[trainer]
steps = {steps}
threads = 1
[optimizer]
final_ratio = 1.0
warmup_steps = 2
[evaluate]
every = 5
[checkpoint]
every = 4
[tracking]
uri = "off"
[cluster]
launcher = "local"
"""
LAYOUTS = {
    "packed": 'boundary = "pack"',
    "in blocks, padded": 'shuffle = "block"\nblock = 2\nboundary = "pad"',
}


@pytest.fixture(scope="module")
def other_store(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    lines = [
        json.dumps({"id": f"o{i}", "text": f"other text {i} " * (i % 9 + 1)}) for i in range(50)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    build_store(
        [str(folder / "corpus.jsonl")],
        tokenizer=str(tiny_store / "tokenizer.model"),
        out=str(folder / "store"),
        settings=BuildSettings(held_out=0.2),
    )
    return folder / "store"


def write(folder: Path, layout: str, stores: list[Path], *, steps: int) -> Path:
    text = TOML.format(folder=folder, store=stores[0])
    text = text.replace("segment = 16", f"segment = 16\n{LAYOUTS[layout]}")
    tables = [f'{{store = "{one}", weight = {i + 1}}}' for i, one in enumerate(stores)]
    text = text.replace(f'store = "{stores[0]}"', f"mixture = [{', '.join(tables)}]")
    path = folder / "run.toml"
    path.write_text(text + REST.format(steps=steps))
    return path


def lines_of(folder: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "per_second", "attempt", "time")
    return [
        {
            key: value
            for key, value in line.items()
            if not key.endswith(timed) and not key.startswith("system/")
        }
        for line in RunFolder(folder / "run").lines()
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_mixture_of_any_layout_trains_resumes_evaluates_and_is_checked(
    tiny_store: Path,
    other_store: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    layout: str,
) -> None:
    stores = [tiny_store, other_store]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder, steps in ((whole, (12,)), (cut, (6, 12))):
        folder.mkdir()
        for until in steps:
            assert code_of("train", str(write(folder, layout, stores, steps=until))) == 0
    ours, theirs = (
        [line for line in lines_of(folder) if line["kind"] == "step"] for folder in (whole, cut)
    )
    assert ours == theirs
    assert (ours[-1]["train/targets"] < 12 * 4 * 16) == ("padded" in layout)  # pads are no targets
    assert abs(ours[-1]["data/source_1/share"] - 2 / 3) < 0.25
    run = str(whole / "run")
    alone = ("evaluate", run, "--store", str(other_store))  # a mixture's stores one by one
    for words in (("check", run), ("evaluate", run), alone, ("show", run), ("generate", run)):
        capfd.readouterr()
        assert code_of(*words, "--json") == 0, words
        facts = json.loads(capfd.readouterr().out.splitlines()[-1])
        if words[0] == "evaluate":
            assert facts["scores"][0]["documents"] > 5
        if words[0] == "show":
            assert facts["store"] == f"{tiny_store}, {other_store}"
            assert "of the tokens dealt" in facts[f"from {other_store}"]


def test_a_run_does_not_go_on_with_another_mixture(
    tiny_store: Path, other_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, "packed", [tiny_store, other_store], steps=2)
    assert code_of("train", str(config)) == 0
    config.write_text(config.read_text().replace("weight = 2", "weight = 3"))
    assert code_of("train", str(config)) == 2
    assert "data.store_fingerprint" in capsys.readouterr().err
