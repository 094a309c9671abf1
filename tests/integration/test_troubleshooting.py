"""Every message of docs/troubleshooting.md is really said, and no other stands there."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import code_of
from tests.integration.test_bad_input import TOML

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)
TRAIN = ("train", "run.toml", "--set")
BUILD = ("build", "bad.jsonl", "--tokenizer", "store/tokenizer.model", "--out", "new", "--no-ray")


def shorten(folder: str, pattern: str) -> Callable[[], None]:
    """Cuts the newest file of a pattern short."""

    def act() -> None:
        path = max(Path(folder).glob(pattern))
        path.write_bytes(path.read_bytes()[:-10])

    return act


def nothing() -> None: ...


# In an order in which a run is there when it is needed, and the damage comes last.
CASES: list[tuple[str, tuple[str, ...], Callable[[], None]]] = [
    ("is unknown", (*TRAIN, "trainer.stpes=5"), nothing),
    ("there is no such file", ("train", "gone.toml"), nothing),
    ("data.store is empty", (*TRAIN, "data.store="), nothing),
    ("shared out evenly", (*TRAIN, "trainer.accumulation=3"), nothing),
    ("holds no manifest.json", (*TRAIN, "data.store=."), nothing),
    ("training documents and", (*TRAIN, "rows.rows=400"), nothing),
    ("too small for a vocabulary", ("tokenizer", "small.jsonl", "--out", "t.model"), nothing),
    ("records are bad", BUILD, nothing),
    ("on the command line", ("build", "https://h/a.jsonl?X-Amz-Signature=a", *BUILD[2:]), nothing),
    ("no run to go on with", ("train", "run.toml", "--resume", "must"), nothing),
    ("is no run", ("resume", "nobody"), nothing),
    ("cannot be used", (*TRAIN, "tracking.uri=http://127.0.0.1:9"), nothing),
    ("", ("train", "run.toml"), nothing),
    ("holds a run already", ("train", "run.toml", "--resume", "never"), nothing),
    ("belongs to another run", (*TRAIN, "rows.segment=4"), nothing),
    ("is whole", ("resume", "run", "--set", "trainer.steps=4"),
     shorten("runs/run", "checkpoints/*/model.safetensors")),
    ("the manifest says", (*TRAIN, "run.name=new"), shorten("store", "parts/*.arrow")),
]  # fmt: skip


def test_every_message_of_the_page_is_said(
    tiny_store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shutil.copytree(tiny_store, "store")
    Path("run.toml").write_text(TOML.format(store="store"), encoding="utf-8")
    Path("small.jsonl").write_text(json.dumps({"text": "row by row"}), encoding="utf-8")
    Path("bad.jsonl").write_text('{"text": "a b"}\n{"body": "c"}\n', encoding="utf-8")
    said: list[str] = []
    for part, words, prepare in CASES:
        prepare()
        code = code_of(*words)
        told = capsys.readouterr().err
        if not part:
            assert code == 0, told
            continue
        (message,) = [one for one in MESSAGES if part in one]
        wanted = ".+".join(re.escape(piece) for piece in message.split("…"))
        assert re.search(wanted, told), (message, told)
        assert code in {2, 3}
        said.append(message)
    assert sorted(said) == sorted(MESSAGES)
