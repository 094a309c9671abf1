"""Progress is a bar for a person and a line now and then for a log."""

from dataclasses import replace

import pytest

from jobs.build import showing
from jobs.progress import Progress
from pipeline.progress import BuildProgress, Seen


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
        "tokenizing: 2,000 of 4,000 documents, 1.5 MB/s",
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
        now = iter([0.0, 10.0, 20.0, 30.0])
        with Progress("building", unit="bytes", person=person, clock=now.__next__) as shown:
            show = showing(shown, clock=iter([0.0, 0.0, 2.0, 2.0]).__next__)
            show(start)
            show(later)
        said = capsys.readouterr().err
        line = "building: 2,000 of 4,000 bytes, 7 documents, 5,000 tokens, 2,500 tokens/s\n"
        assert (line in said) is not person
        assert ("actor 0: a.jsonl (bytes 0 to 9), 2,500 tokens, 300 MB" in said) is person
        assert ("actor 1: between two tasks, 200 MB" in said) is person


def test_a_person_gets_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("tokenizing", unit="documents", person=True) as shown:
        shown.show(1, 2)
        shown.show(2, 2)
    assert "tokenizing" in capsys.readouterr().err
