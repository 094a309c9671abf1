"""A text of a corpus on a screen commands nothing there."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from jobs.drive import say
from jobs.entry import Exit, Outcome, finish
from jobs.progress import Progress
from jobs.show import command
from jobs.visible import visible
from pipeline.build import build_store
from pipeline.errors import DataError
from pipeline.settings import BuildSettings
from tests.command import code_of

JOBS = Path(__file__).parents[2] / "jobs"
HOSTILE = "a\x1b[2J\x1b]0;title\x07 b\u202ec \x9b31m d\re"
SHOWN = r"a\x1b[2J\x1b]0;title\x07 b\u202ec \x9b31m d\re"


def test_what_commands_a_screen_is_spelled_out_and_letters_are_left() -> None:
    assert visible(HOSTILE) == SHOWN
    for kept in ("line\nline\r\n\ttab", "日本語\u3000\xa0", "👩\u200d💻"):
        assert visible(kept) == kept


@pytest.mark.parametrize("words", [["--doc", "0"], []])
def test_a_document_and_a_store_are_shown_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "t").write_text('{"format": "longrow-bytes", "version": 1}')
    lines = [json.dumps({"text": HOSTILE, "id": HOSTILE}), "{"]
    (tmp_path / "\x1b[31m.jsonl").write_text("\n".join(lines))
    out = str(tmp_path / "s")
    settings = BuildSettings(max_bad="100%", held_out=0.0)
    build_store(
        [str(tmp_path / "\x1b[31m.jsonl")],
        tokenizer=str(tmp_path / "t"),
        out=out,
        settings=settings,
    )
    outcome = command.main([out, *words], standalone_mode=False)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert r"\x1b[31m.jsonl" in said
    if words:
        assert said.count(SHOWN) == 2
        assert outcome.facts["text"] == HOSTILE


def test_an_error_that_names_a_file_of_others_commands_nothing_either(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work() -> Outcome:
        raise DataError(f"{HOSTILE}.jsonl is bad.\nSee there.")

    assert finish(work, ["--json"]) is Exit.BAD_DATA
    told = capsys.readouterr()
    assert told.err == f"longrow: {SHOWN}.jsonl is bad.\nSee there.\n"
    assert json.loads(told.out)["error"].startswith(HOSTILE)


def test_what_a_model_writes_commands_nothing_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = SimpleNamespace(config=SimpleNamespace(memory=1), content_bias=torch.zeros(1))
    found = SimpleNamespace(
        loaded=SimpleNamespace(model=model, tokenizer=lambda: None), shown="step_1-a0001"
    )

    def write(*_given: object, **_named: object) -> Iterator[list[str]]:
        yield [HOSTILE, HOSTILE]

    monkeypatch.setattr("jobs.find.load", lambda *_given, **_named: found)
    monkeypatch.setattr("trainer.room.check_room", lambda *_given, **_named: None)
    monkeypatch.setattr("trainer.writing.write", write)
    assert code_of("generate", "run", "--prompt", "\x1bA", "--prompt", "\x1bB", "--json") == 0
    said, _, last = capsys.readouterr().out.rstrip().rpartition("\n")
    assert said == rf"\x1bA{SHOWN}" + "\n\n" + rf"\x1bB{SHOWN}"
    assert json.loads(last)["texts"][1] == {"prompt": "\x1bB", "text": HOSTILE}


def test_a_sentence_above_a_bar_commands_nothing_either(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say(HOSTILE)
    with Progress("\x1btitle", unit="documents", clock=iter([0.0, 100.0]).__next__) as progress:
        progress.show(1, note=HOSTILE)
    assert capsys.readouterr().err == f"{SHOWN}\n\\x1btitle: 1 documents, {SHOWN}\n"


def past_echo(text: str) -> list[str]:
    """Calls by which a file of ours says something on a screen."""
    named = (
        ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
    )
    return [name for name in named if name in WAYS]


WAYS = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write", "tqdm.write"}
MAY = {
    "visible.py": ["click.echo"],
    "entry.py": ["print"],  # the line of --json
    "drive.py": ["tqdm.write"],  # above a bar; it is made visible
    "__init__.py": ["sys.stderr.write"],  # a sentence of ours, while nothing is imported yet
    "gpu.py": ["print"] * 3,  # where no click is: lines of its own
}


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.py")), ids=lambda path: path.name)
def test_no_command_says_anything_past_echo(path: Path) -> None:
    assert past_echo(path.read_text(encoding="utf-8")) == MAY.get(path.name, [])


def test_each_way_past_echo_would_be_seen() -> None:
    assert past_echo("\n".join(f"{way}('a')" for way in sorted(WAYS))) == sorted(WAYS)
