"""Progress is a bar for a person and a line now and then for a log."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from jobs.build import showing
from jobs.config import from_dict
from jobs.drive import scored_now
from jobs.prepare import prepare_store
from jobs.progress import Progress
from pipeline.progress import BuildProgress, Seen
from pipeline.tokenizer import train_tokenizer


def test_a_log_gets_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 5.0, 12.0, 13.0, 30.0])
    with Progress("tokenizing", unit="documents", person=False, clock=lambda: next(now)) as shown:
        shown.show(1)
        shown.show(2_000, 4_000, "1.5 MB/s")
        shown.show(3_000, 4_000)
        shown.show(4_000)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "tokenizing: 2,000 of 4,000 documents, 1.5 MB/s, 00:07 left",
        "tokenizing: 4,000 documents",
    ]


def test_a_person_sees_each_actor_and_a_log_the_rate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    builders = (
        Seen(builder=0, task="a.jsonl (bytes 0 to 9)", tokens=2_500, peak_bytes=300_000_000),
        Seen(builder=1, peak_bytes=200_000_000),
    )
    start = BuildProgress(tasks=3, bytes=4_000)
    later = replace(start, bytes_done=2_000, documents=7, tokens=5_000, builders=builders)
    for person in (True, False):
        now = iter([0.0, 5.0, 65.0])
        with Progress("building", unit="bytes", person=person, clock=now.__next__) as shown:
            show = showing(shown, clock=iter([0.0, 0.0, 2.0, 2.0]).__next__)
            show(start)
            show(later)
        said = capsys.readouterr().err
        line = "building: 2,000 of 4,000 bytes, 7 documents, 5,000 tokens, 2,500 tokens/s"
        line += ", 01:00 left\n"
        assert (line in said) is not person
        assert ("actor 0: a.jsonl (bytes 0 to 9), 2,500 tokens, 300 MB" in said) is person
        assert ("actor 1: between two tasks, 200 MB" in said) is person


def test_a_training_that_builds_first_shows_its_build_as_the_build_alone_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "byte").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    monkeypatch.setattr("jobs.progress.SECONDS_BETWEEN_LINES", 0.0)
    data = {"store": str(tmp_path / "store"), "tokenizer": str(tmp_path / "byte")}

    def build(*_: object, progress: Callable[[BuildProgress], None], **__: object) -> NoReturn:
        start = BuildProgress(tasks=3, bytes=4_000)
        progress(start)
        progress(replace(start, bytes_done=2_000, documents=7, tokens=5_000))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_store(from_dict({"data": data}), ["in"], build=build)
    last = capsys.readouterr().err.splitlines()[-1]
    pattern = (
        r"tokenizing: 2,000 of 4,000 bytes, 7 documents, 5,000 tokens, [\d,]+ tokens/s, .*left"
    )
    assert re.fullmatch(pattern, last)


def test_a_person_gets_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("tokenizing", unit="documents", person=True) as shown:
        shown.show(1, 2)
        shown.show(2, 2)
    assert "tokenizing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kinds", "every", "held_out", "told"),
    [
        ([("step", 59), ("step", 60)], 0, 5_000, "Step 60: scoring 5,000 held-out tokens."),
        ([("step", 40), ("checkpoint", 40)], 20, 5_000, "Step 40: scoring 5,000 held-out tokens."),
        ([("step", 40)], 0, 5_000, ""),
        ([("step", 41)], 20, 5_000, ""),
        ([("step", 60)], 20, 0, ""),  # nothing is held out
        ([("step", 60), ("evaluation", 60)], 20, 5_000, ""),  # done before it could be told
        ([("checkpoint", 60)], 20, 5_000, ""),
        ([], 20, 5_000, ""),
    ],
)
def test_a_run_that_stands_still_to_be_scored_says_so(
    kinds: list[tuple[str, int]], every: int, held_out: int, told: str
) -> None:
    lines = [{"kind": kind, "step": step} for kind, step in kinds]
    assert scored_now(lines, every=every, last=60, held_out=held_out) == told
