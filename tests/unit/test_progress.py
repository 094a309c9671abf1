"""Progress is a bar for a person and a line now and then for a log."""

import pytest

from jobs.progress import Progress


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


def test_a_person_gets_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("tokenizing", unit="documents", person=True) as shown:
        shown.show(1, 2)
        shown.show(2, 2)
    assert "tokenizing" in capsys.readouterr().err
