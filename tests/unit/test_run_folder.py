"""A run has one writer, and its lines are those of the steps that count."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import DataError
from trainer import run_folder
from trainer.errors import ConfigError
from trainer.run_folder import Attempt, RunFolder
from trainer.stop_request import driving
from trainer.summary import read_scores


def attempt(number: int, *, launch: str = "a", start_step: int = 0) -> Attempt:
    return Attempt(
        number=number,
        launch=launch,
        start_step=start_step,
        world_size=1,
        threads=1,
        resumed_from="",
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


def test_a_number_is_taken_once(folder: RunFolder) -> None:
    folder.begin(attempt(1))
    with pytest.raises(ConfigError, match="begun by another process"):
        folder.begin(attempt(1))
    assert folder.next_attempt() == 2
    assert folder.attempts() == [attempt(1)]


def test_an_overtaken_attempt_may_not_write(folder: RunFolder) -> None:
    folder.begin(attempt(1))
    folder.check_lease(1)
    folder.begin(attempt(2))
    folder.check_lease(2)
    with pytest.raises(ConfigError, match="overtaken by a later one"):
        folder.check_lease(1)


def test_lines_past_the_step_are_dropped_and_a_torn_one_is_left_out(folder: RunFolder) -> None:
    lines = [{"kind": "step", "step": step} for step in range(1, 6)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    folder.metrics.write_text(text + '{"kind": "step", "st')
    assert list(folder.lines()) == lines
    folder.cut(3)
    assert list(folder.lines()) == lines[:3]
    assert folder.metrics.read_text().endswith("\n")


def test_a_full_disk_does_not_keep_a_run_from_going_back(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"kind": "step", "step": step} for step in range(1, 6)]
    scored = {"kind": "evaluation", "step": 3}
    told = [*lines[:3], scored, *lines[3:]]
    text = "".join(json.dumps(line) + "\n" for line in told)
    folder.metrics.write_text(text + '{"kind": "step", "st')

    def refuse(_url: str, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_folder, "write_whole", refuse)
    folder.cut(3)
    assert folder.metrics.read_bytes().splitlines() == [
        json.dumps(one).encode() for one in told[:4]
    ]
    folder.drop_evaluation(3)
    assert list(folder.lines()) == lines[:3]
    folder.add_line(scored)
    assert list(folder.lines()) == [*lines[:3], scored]


def test_what_an_overtaken_attempt_wrote_between_others_goes_with_what_is_cut(
    folder: RunFolder,
) -> None:
    lines = [{"kind": "step", "step": step, "attempt": 1} for step in range(1, 4)]
    late = [{"kind": "step", "step": step, "attempt": 1} for step in (4, 5)]
    again = [{"kind": "step", "step": step, "attempt": 2} for step in range(4, 8)]
    told = [*lines, again[0], late[0], again[1], late[1], *again[2:]]
    folder.begin(attempt(1))
    folder.begin(replace(attempt(2), start_step=3))
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in told))
    folder.cut(5)
    assert [json.loads(line) for line in folder.metrics.read_text().splitlines()] == [
        *lines,
        *again[:2],
    ]


def test_evaluations_of_a_step_that_will_come_again_are_dropped_whoever_made_them(
    folder: RunFolder,
) -> None:
    names = ["step_{}.json", "memory_step_{}_L16.json", "memory_step_{}_L16.png"]
    names += ["context_step_{}_M8.json", "context_step_{}_M8.png"]
    names += ["memory_step_{}_L16-0a1b2c3d.json", "context_step_{}_M8-0a1b2c3d.png"]
    files = {step: {name.format(f"{step:08d}") for name in names} for step in (3, 4)}
    for name in (*files[3], *files[4], "notes_step_00000009.txt"):
        (folder.evaluations / name).write_text("")
    folder.cut(3)
    assert {path.name for path in folder.evaluations.iterdir()} == {
        *files[3],
        "notes_step_00000009.txt",
    }


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        RunFolder(tmp_path / "file" / "run").create()


def test_evaluations_past_the_step_go_with_their_lines(folder: RunFolder) -> None:
    for step in (2, 10):
        (folder.evaluations / f"step_{step:08d}.json").write_text("[]")
    folder.cut(5)
    assert [path.name for path in folder.evaluations.iterdir()] == ["step_00000002.json"]


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b""])
def test_a_damaged_small_file_is_a_sentence_that_names_it(folder: RunFolder, data: bytes) -> None:
    (folder.path / "config.json").write_bytes(data)
    with pytest.raises(DataError, match=r"config\.json is damaged"):
        folder.read_json("config.json")
    (folder.path / "attempts" / "0001.json").write_bytes(data)
    with pytest.raises(DataError, match=r"0001\.json is damaged"):
        folder.attempts()
    folder.metrics.write_bytes(data + b"\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl is damaged"):
        list(folder.lines())


def test_a_line_that_a_sleeper_wrote_after_it_was_overtaken_does_not_count(
    folder: RunFolder,
) -> None:
    folder.begin(attempt(1))
    early, late = ({"kind": "step", "step": step, "attempt": 1} for step in (3, 4))
    assert folder.counts(late)
    folder.begin(attempt(2, start_step=3))
    for line in (early, {"kind": "step", "step": 4, "attempt": 2}, late):
        folder.add_line(line)
    assert [line["attempt"] for line in folder.lines()] == [1, 2]
    assert folder.counts(early)
    assert not folder.counts(late)


def test_a_sleeper_leaves_no_sign_of_life_in_a_run_that_has_another_driver(
    folder: RunFolder,
) -> None:
    with driving(folder, launch="old"):
        folder.rest()
        folder.beat(launch="old")
        assert folder.last_beat() is not None
        with driving(folder, launch="new"):
            folder.rest()
            folder.beat(launch="old")
            assert folder.last_beat() is None
    folder.beat(launch="old")
    assert folder.last_beat() is None


def test_damaged_scores_are_a_sentence_that_names_the_file(folder: RunFolder) -> None:
    folder.evaluation(3).write_text("[{")
    with pytest.raises(DataError, match=r"step_00000003\.json is damaged"):
        read_scores(folder)
