"""What `longrow show` cannot draw, or would take for ever, is refused before it begins."""

import json
from pathlib import Path

import pytest

from jobs.entry import Exit
from tests.command import code_of


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--step", "99999999999999"), "at most step 10,000,000"),
        (("--step", "1", "--around", "10000"), "at most 200 steps"),
        (("--step", "1", "--doc", "3"), "give one"),
        (("--batch", "1", "--uid", "a"), "give one"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tiny_store: Path, words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("show", str(tiny_store), *words) == Exit.BAD_USE
    assert told in capsys.readouterr().err


def test_a_document_of_a_run_is_that_of_the_store_it_reads(
    tiny_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"data": {"store": str(tiny_store)}}))
    assert code_of("show", str(run), "--doc", "1") == Exit.DONE
    of_run = capsys.readouterr().out
    assert code_of("show", str(tiny_store), "--doc", "1") == Exit.DONE
    assert of_run == capsys.readouterr().out
