"""A command ends with the code its end deserves, and says why in a sentence."""

import errno
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from jobs import entry
from jobs.entry import Exit, Job, Outcome, Terminated, explain, finish
from model.config import ModelError
from pipeline.errors import DataError
from pipeline.files import writing_whole
from pipeline.layout import RowsError
from pipeline.settings import SettingsError
from trainer.errors import ConfigError


class WrappedError(Exception):
    """What an actor's error looks like: it holds what its method raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("a long traceback of another process")
        self.cause = cause


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("what"), Exit.BAD_DATA),
        (WrappedError(DataError("what")), Exit.BAD_DATA),
        (ConfigError("what"), Exit.BAD_USE),
        (ModelError("what"), Exit.BAD_USE),
        (RowsError("what"), Exit.BAD_USE),
        (SettingsError("what"), Exit.BAD_USE),
        (click.UsageError("what"), Exit.BAD_USE),
        (PermissionError(13, "what", "there"), Exit.BAD_USE),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (click.Abort(), Exit.INTERRUPTED),
        (Terminated(), Exit.TERMINATED),
        (RuntimeError("what"), Exit.FAILED),
        (OSError(28, "No space left on device", "there"), Exit.FAILED),
    ],
)
def test_an_error_has_its_exit_code(error: BaseException, code: Exit) -> None:
    assert explain(error)[0] is code
    assert "traceback" not in explain(error)[1]


def raising(error: BaseException) -> Callable[[], Outcome]:
    def work() -> Outcome:
        raise error

    return work


def test_bad_data_is_one_sentence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(raising(DataError("a.jsonl is empty.")), []) is Exit.BAD_DATA
    said = capsys.readouterr()
    assert said.err == "longrow: a.jsonl is empty.\n"
    assert said.out == ""


def test_a_fault_of_ours_says_where_its_traceback_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert finish(raising(RuntimeError("odd")), []) is Exit.FAILED
    said = capsys.readouterr().err
    assert said.startswith("longrow: RuntimeError: odd")
    assert "Traceback" not in said
    (kept,) = tmp_path.iterdir()
    assert str(kept) in said
    assert "Traceback" in kept.read_text()


def test_a_full_disk_is_a_sentence_that_names_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fill() -> None:
        with writing_whole(str(tmp_path / "part.arrow")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write says it: no name

    with pytest.raises(OSError, match="No space") as caught:
        fill()
    arrived = pickle.loads(pickle.dumps(caught.value))  # from an actor
    assert finish(raising(arrived), []) is Exit.FAILED
    assert capsys.readouterr().err == (
        f"longrow: {tmp_path}/part.arrow: No space left on device. Make room and run the command "
        "again: what was done stays, and a rerun goes on from there.\n"
    )


@pytest.mark.parametrize("error", [RuntimeError("odd"), DataError("odd")])
def test_debug_shows_the_traceback(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    finish(raising(error), ["--debug"])
    assert "Traceback" in capsys.readouterr().err


def test_json_is_the_last_line_of_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> Outcome:
        click.echo("words for a person")
        return Outcome(facts={"documents": 3}, code=Exit.INTERRUPTED)

    assert finish(work, ["--json"]) is Exit.INTERRUPTED
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"documents": 3, "exit_code": 130}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
def test_json_that_nobody_takes_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr("sys.stdout", Full())
    assert finish(Outcome, ["--json"]) is Exit.FAILED
    assert "Traceback" not in capsys.readouterr().err


def test_json_tells_an_error_too(capsys: pytest.CaptureFixture[str]) -> None:
    finish(raising(DataError("a.jsonl is empty.")), ["--json"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"error": "a.jsonl is empty.", "exit_code": 3}


def test_a_package_of_ours_that_is_a_strangers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "packages_distributions", lambda: {"trainer": ["trainer"]})
    with pytest.raises(entry.StrangersError, match="'trainer' is also provided by trainer"):
        entry.check_own_packages()


def test_a_folder_that_shadows_a_package_of_ours_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(entry, "__file__", str(tmp_path / "jobs" / "entry.py"))
    with pytest.raises(entry.StrangersError, match="'pipeline' resolves to"):
        entry.check_own_packages()


def test_the_user_has_the_last_word_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    entry.set_environment()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    assert os.environ["DO_NOT_TRACK"] == "true"


WAITING = """
import sys, time, click
from jobs.entry import Job, run

@click.command("wait", cls=Job)
def wait():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("tidied", flush=True)

run(wait, sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)]
)
def test_a_signal_unwinds_the_command_and_gives_its_code(number: int, code: Exit) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out == "tidied\n"
    assert process.returncode == code
    assert err.strip().startswith("longrow: Stopped by")
    assert "Traceback" not in err


LOSING = """
import sys, time, click
from jobs.entry import Job, run, sent
from trainer.signals import stop_wish

@click.command("wait", cls=Job)
def wait():
    try:
        print("ready", flush=True)
        time.sleep(60)
    except:
        pass
    with stop_wish(sent()) as wish:
        print(wish.reason())

run(wait, sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_library_swallows_is_not_forgotten(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", LOSING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert out == f"{number.name} was received\n"


TORN = """
import os, signal, sys, time, click
from jobs.entry import Job, raise_on_sigterm, run

@click.command("wait", cls=Job)
def wait():
    raise_on_sigterm()
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        time.sleep(0.3)  # the second one comes
        print("cleaned up", flush=True)

run(wait, [])
"""


def test_what_a_sigterm_ends_is_not_torn_by_its_echo() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TORN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    for _ in range(2):  # as `timeout` does
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("cleaned up\n", "longrow: Stopped by SIGTERM.\n")
    assert process.returncode == Exit.TERMINATED


TWICE = """
import atexit, os, signal, sys, time, click
from jobs.entry import Job, run

@atexit.register
def end_of_a_library():
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    time.sleep(60)

@click.command("wait", cls=Job)
def wait():
    print("begun")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

run(wait, [])
"""


@pytest.mark.parametrize("second", ["SIGINT", "SIGTERM"])
def test_a_second_signal_in_the_end_of_a_library_is_no_traceback(second: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE, second],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == "longrow: Stopped by SIGTERM.\n"
    assert done.stdout == "begun\n"
    assert done.returncode == Exit.TERMINATED


def test_a_wrong_option_is_bad_use_and_names_the_help() -> None:
    @click.command("build", cls=Job)
    def build() -> Outcome:
        return Outcome()

    with pytest.raises(click.UsageError) as refusal:
        build.main(["--nosuch"], prog_name="longrow build", standalone_mode=False)
    code, message = explain(refusal.value)
    assert code is Exit.BAD_USE
    assert "--nosuch" in message
    assert "`longrow build --help`" in message


def test_ctrl_c_while_a_command_is_still_being_imported_is_a_sentence() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import jobs; raise KeyboardInterrupt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stderr == "longrow: Stopped by Ctrl-C.\n"
    assert told.returncode == -signal.SIGINT  # 130 to a shell


BESIDE = """
import atexit, os, sys, threading, time
import click
from jobs.entry import Exit, Outcome, run

class Late:
    def __del__(self, write=os.write):  # as the interpreter is torn down
        write(1, b"torn down\\n")

late = Late()

@click.command()
def command():
    if "beside" in sys.argv:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    atexit.register(print, "its own end")
    print("done", end=" ")
    return Outcome(code=Exit.TERMINATED)

run(command, [])
"""


@pytest.mark.parametrize(
    ("words", "said"), [((), "done its own end\ntorn down\n"), (("beside",), "done its own end\n")]
)
def test_a_process_with_a_thread_at_work_ends_whole_and_tears_nothing_down_under_it(
    words: tuple[str, ...], said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BESIDE, *words], capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (143, said), done.stderr
