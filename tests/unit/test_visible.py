"""A text of a corpus on a screen commands nothing there."""

import json
from pathlib import Path

import pytest

from jobs.entry import Exit, Outcome, finish
from jobs.show import command
from jobs.visible import visible
from pipeline.build import build_store
from pipeline.errors import DataError
from pipeline.settings import BuildSettings

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
