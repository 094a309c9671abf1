"""A wish to stop: who hears it, what a second one does, and what is said of a run that stops."""

import errno
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jobs import hearing
from jobs.config import read_config
from jobs.drive import _told_once, say
from jobs.entry import Terminated, raise_on_sigterm
from jobs.hearing import LIVES_S, claimed, heard, kept_if_begun, taken_over
from jobs.progress import Progress
from tests.tiny_runs import tiny_plan
from trainer.board import Board, Verdict
from trainer.checkpoint import checkpoint_name
from trainer.endings import ended_before_it_began, ended_without_workers
from trainer.run_folder import RunFolder
from trainer.signals import StopWish, stop_wish
from trainer.stop_request import DRIVER, STOP, ask_to_stop, asked_to_stop, await_end, driving


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


@pytest.mark.parametrize(("rank", "heard"), [("0", "`longrow stop` was called"), ("1", "")])
def test_of_several_ranks_the_first_alone_looks_for_a_wish_in_the_folder(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, rank: str, heard: str
) -> None:
    # Another rank may look before the first one has removed what an earlier start was told.
    monkeypatch.setenv("RANK", rank)
    folder.write_json(STOP, {})
    config = read_config(sets=["cluster.launcher=local"])
    assert _told_once(StopWish(), config, folder, None)() == heard


def test_the_first_signal_after_longrow_stop_ends_at_once(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    wish = StopWish()
    reason = _told_once(wish, read_config(), folder, None)
    with driving(folder, launch="a"):
        assert reason() == ""
        assert ask_to_stop(folder)
        assert reason() == "`longrow stop` was called"
        assert "Ctrl-C or SIGTERM now ends it at once" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            wish.ask(signal.SIGTERM, None)
    assert not asked_to_stop(folder)


def test_a_sigterm_that_is_sent_twice_at_once_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("trainer.signals.time.monotonic", lambda: now[0])
    for number, ends in ((signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)):
        wish = StopWish()
        wish.ask(number, None)
        now[0] += 0.01
        if number == signal.SIGTERM:  # `timeout` sends it to the process, and to its group
            wish.ask(number, None)
        else:  # two presses are two
            with pytest.raises(ends):
                wish.ask(number, None)
        now[0] += 1.5
        with pytest.raises(ends):
            wish.ask(number, None)


def test_a_terminal_that_hangs_up_asks_and_never_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with stop_wish() as wish:
        for _ in range(2):  # the kernel and the shell each say it
            signal.raise_signal(signal.SIGHUP)
        assert wish.reason() == "SIGHUP was received"
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_run_under_nohup_does_not_hear_the_terminal_hang_up() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_wish() as wish:
            signal.raise_signal(signal.SIGHUP)
            assert wish.reason() == ""
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("person", [False, True])
def test_a_terminal_that_is_gone_takes_no_run_with_it(
    monkeypatch: pytest.MonkeyPatch, *, person: bool
) -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Progress(
        "training", unit="steps", person=person, clock=iter(range(0, 900, 99)).__next__
    ) as bar:
        monkeypatch.setattr("sys.stderr", Gone())
        if bar._bar is not None:
            bar._bar.sp = Gone().write
            bar._bar.fp = Gone()
        bar.show(1, 9, "loss 1")
        bar.show(2, 9, "loss 1")
        say("A sentence.")


def test_what_is_said_after_a_terminal_is_gone_fails_no_more() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "from jobs.drive import say; say('one'); import click; click.echo('two', err=True)"
    ended = subprocess.run([sys.executable, "-c", code], stderr=writer, check=False, timeout=120)
    os.close(writer)
    assert ended.returncode == 0


def test_who_drives_a_run_already_says_it_once_and_a_run_that_was_taken_over_is_taken_back(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = folder.write_json

    def keep(name: str, value: dict[str, Any]) -> None:
        written.append(name)
        write(name, value)

    monkeypatch.setattr(folder, "write_json", keep)
    with driving(folder, launch="a"):
        with driving(folder, launch="a"):
            assert written == [DRIVER]
        assert folder.read_json(DRIVER) is None
    with driving(folder, launch="a"):
        write(DRIVER, {"launch": "b"})
        with driving(folder, launch="a"):
            assert folder.is_driven_by("a")
            assert written == [DRIVER] * 3


def test_who_drives_a_run_shows_life_from_the_first_and_rests_only_what_is_its_own(
    folder: RunFolder,
) -> None:
    with driving(folder, launch="a"):
        assert folder.last_beat() is not None
    assert folder.last_beat() is None
    with driving(folder, launch="a"):
        folder.write_json(DRIVER, {"launch": "another"})
    assert folder.last_beat() is not None
    assert folder.read_json(DRIVER) == {"launch": "another"}


@pytest.mark.parametrize("told", ["", "{}", "[1]", "\0" * 50])
def test_a_damaged_sign_of_who_drives_neither_ends_a_run_nor_keeps_it_from_going_on(
    folder: RunFolder, told: str
) -> None:
    sign = folder.path / DRIVER
    sign.write_text(told)
    assert ask_to_stop(folder)  # somebody may drive it
    assert not await_end(folder, wait_s=0)
    with driving(folder, launch="a"):
        assert not asked_to_stop(folder)
        assert folder.is_driven_by("a")
        sign.write_text(told)


def _begin_and_leave(folder: RunFolder, *, begun: bool) -> None:
    with kept_if_begun(folder, first=True) as event:
        folder.create()
        if begun:
            event.set()
        raise SystemExit


def test_a_folder_that_is_new_goes_again_if_nothing_began(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for begun, there in ((False, False), (True, True), (False, True)):  # the last: not new
        with pytest.raises(SystemExit):
            _begin_and_leave(folder, begun=begun)
        assert folder.path.exists() is there


def test_a_folder_that_another_start_has_taken_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(SystemExit), kept_if_begun(folder, first=True):
        _taken_by_another(folder)
    assert folder.read_json(DRIVER) == {"launch": "another"}


def _taken_by_another(folder: RunFolder) -> None:
    folder.create()
    folder.write_json(DRIVER, {"launch": "another"})
    raise SystemExit


def test_a_worker_that_comes_when_all_is_over_is_told_how_it_ended() -> None:
    board = Board()
    assert board.enter(0).verdict is None
    board.end(Verdict(status="stopped", step=7))
    assert board.enter(0).verdict == Verdict(status="stopped", step=7)


def test_a_stop_without_workers_says_whether_there_were_any(
    tiny_store: Path, tmp_path: Path
) -> None:
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=9)
    for step in (5, 10):
        path = RunFolder(plan.folder).checkpoints / checkpoint_name(step, 1)
        path.mkdir()
        (path / "manifest.json").write_text("{}")
    before = ended_before_it_began(plan, "SIGTERM was received")
    assert before.reason == "SIGTERM was received, before the workers were there"
    lost = ended_without_workers(plan, "SIGTERM was received")
    assert lost.reason == (
        "SIGTERM was received, and no worker answered: what came after it is lost"
    )
    assert before.step == lost.step == 10


def test_a_folder_that_does_not_answer_for_a_moment_does_not_end_the_hearing(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def asked(_folder: RunFolder) -> bool:
        looks.append(1)
        if len(looks) < 3:
            raise OSError(errno.ESTALE, "Stale file handle")
        return True

    monkeypatch.setattr(hearing, "asked_to_stop", asked)
    monkeypatch.setattr(hearing, "LOOK_S", 0.01)
    before = signal.getsignal(signal.SIGTERM)
    said: list[str] = []
    raise_on_sigterm()
    try:
        with pytest.raises(Terminated), heard(folder, first=True, say=said.append):
            threading.Event().wait(20)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(looks) == 3
    assert "the same command goes on with it" in said[0]


def test_a_start_that_takes_over_a_run_that_lives_says_so(folder: RunFolder) -> None:
    said: list[str] = []
    with claimed(folder, first=True, say=said.append):
        assert said == []  # a new run is nobody's
        with claimed(folder, first=False, say=said.append):
            assert said == []  # another rank of the same start
        with claimed(folder, first=True, say=said.append):
            assert len(said) == 1
            assert "this start takes the run over" in said[0]
    folder.rest()
    with claimed(folder, first=True, say=said.append):
        assert len(said) == 1  # it had ended
    folder.beat()
    assert taken_over(folder, now=time.time() + 3).endswith("and the other one ends.")
    assert taken_over(folder, now=time.time() + LIVES_S + 1) == ""  # long dead
