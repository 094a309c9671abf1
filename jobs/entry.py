"""What every command does around its own work: guard, environment, exit code, JSON."""

import atexit
import errno
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

import click

from jobs.visible import echo
from trainer.signals import is_echo

DISTRIBUTION = "longrow"
PACKAGES = ("pipeline", "model", "trainer", "jobs")
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}


class Exit(IntEnum):
    """How a command ends, as its process says it."""

    DONE = 0
    FAILED = 1
    BAD_USE = 2
    BAD_DATA = 3
    INTERRUPTED = 130
    TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM arrived; `with` blocks and `finally` clauses end what they began."""


class Job(click.Command):
    """A command with the two options that all of them have; `finish` acts on them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(
                ["--json"],
                is_flag=True,
                expose_value=False,
                help="Print one JSON object as the last line of standard output.",
            ),
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                help="Show the traceback of any error.",
            ),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an address with a credential in it before any message can repeat it."""
        refuse_credentials(ctx, args)
        return super().parse_args(ctx, args)


def refuse_credentials(ctx: click.Context, words: Sequence[str]) -> None:
    """Refuse words of a command line of which one holds a password.

    Raises:
        UsageError: One does; it is not repeated.
    """
    from pipeline.credentials import INSTEAD, credential_in  # ours, as was seen by now

    for word in words:
        if found := credential_in(word):
            ctx.fail(
                f"An address on the command line holds {found}: who lists processes sees it, and "
                f"it would stand in logs. {INSTEAD}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command has to say when it is done.

    Attributes:
        facts: Printed as one JSON object under `--json`; JSON types only.
        code: The exit code: a training that was stopped after a checkpoint is no error.
    """

    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    code: Exit = Exit.DONE


def run(command: click.Command, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `command` as the process's own work and leave with the code its end deserves.

    Args:
        command: Its function returns an Outcome, or nothing.
        arguments: The words after the command's name; sys.argv's if None.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    set_environment()
    codes: list[Exit] = []
    atexit.register(_end_beside_threads, codes)  # the first to be registered is the last called
    _raise_on(signal.SIGINT)
    raise_on_sigterm()
    codes.append(finish(lambda: _call(command, words), words))
    _end_at_once_on_another(codes[0])
    sys.exit(codes[0])


def _end_at_once_on_another(code: Exit) -> None:
    """Let a signal from here on end the process where it stands, with the code that it has.

    `timeout` sends two, people press twice: an exception would come out of a library's own end, as
    a traceback after the last sentence.
    """

    def handler(_number: int, _frame: FrameType | None) -> NoReturn:
        os._exit(code)

    with suppress(OSError, ValueError):  # who read it has gone
        sys.stdout.flush()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _end_beside_threads(codes: Sequence[Exit]) -> None:
    """End without tearing the interpreter down while a thread that nobody waits for still works.

    It may be in C++: in torch's store, in sentencepiece. One that comes back from there while the
    interpreter ends aborts the process ("terminate called without an active exception").
    """
    if codes and any(thread.daemon for thread in threading.enumerate()):
        with suppress(OSError, ValueError):  # who read it has gone
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(codes[0])


def finish(work: Callable[[], Outcome], words: Sequence[str]) -> Exit:
    """Do `work`; say how it ended, as text and with `--json` as the last line of stdout.

    Args:
        work: The command's work.
        words: The command line, of which `--json` and `--debug` are read here, so that a wrong
            command line is answered in the form that was asked for.

    Returns:
        The exit code.
    """
    try:
        outcome = work()
    except BrokenPipeError:  # the reader of our output has left: nobody to tell
        mute(sys.stdout)
        return Exit.FAILED
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:
            error = Terminated()  # as Ray's own handler says it, while it starts
        if isinstance(error, SystemExit):
            raise
        code, message = explain(error)
        if code is Exit.FAILED and "--debug" not in words and not _is_told(error):
            message += " " + _keep_traceback(error)
        if "--debug" in words:
            echo("".join(traceback.format_exception(error)), err=True, nl=False)
        echo(f"longrow: {message}", err=True)
        outcome = Outcome(facts={"error": message}, code=code)
    if "--json" in words:
        try:
            print(json.dumps({**outcome.facts, "exit_code": int(outcome.code)}), flush=True)
        except OSError as error:  # its reader has left, or its disk is full
            return _unheard(error)
    return outcome.code


def _unheard(error: OSError) -> Exit:
    """Say on stderr that stdout takes nothing, and let nothing more go there as we end."""
    if not isinstance(error, BrokenPipeError):
        message = f"Standard output: {error.strerror}. The command's work is done."
        echo(f"longrow: {message}", err=True)
    mute(sys.stdout)
    return Exit.FAILED


def mute(stream: TextIO) -> None:
    """Let nothing more go to a stream whose reader has left, and nothing of it fail."""
    with suppress(OSError, ValueError):  # no descriptor: nothing is left to be flushed
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def explain(error: BaseException) -> tuple[Exit, str]:
    """Tell what an error means to the one who typed the command.

    Returns:
        The exit code, and what to say.
    """
    cause = getattr(error, "cause", None)  # an actor's error wraps what its method raised
    if isinstance(cause, Exception):
        error = cause
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return Exit.INTERRUPTED, "Stopped by Ctrl-C."
    if isinstance(error, Terminated):
        return Exit.TERMINATED, "Stopped by SIGTERM."
    if isinstance(error, click.ClickException):
        return Exit.BAD_USE, _click_message(error)
    if _is_one_of(error, ("pipeline.errors", "DataError")):
        return Exit.BAD_DATA, str(error)
    settings = (
        ("trainer.errors", "ConfigError"),
        ("model.config", "ModelError"),
        ("pipeline.layout", "RowsError"),
        ("pipeline.settings", "SettingsError"),
    )
    if isinstance(error, StrangersError) or _is_one_of(error, *settings):
        return Exit.BAD_USE, str(error)
    if isinstance(error, OSError) and (told := _explain_disk(error)):
        return told
    if _is_one_of(error, *WITHOUT_RAY):
        return Exit.FAILED, str(error)
    return Exit.FAILED, f"{type(error).__name__}: {error}"


def _explain_disk(error: OSError) -> tuple[Exit, str] | None:
    if error.errno in _CANNOT_BE:
        return Exit.BAD_USE, f"{error.filename}: {error.strerror}. Name another file or folder."
    if _no_room(error):
        return Exit.FAILED, (
            f"{error.filename or 'The disk'}: {error.strerror}. Make room and run the command "
            "again: what was done stays, and a rerun goes on from there."
        )
    if _broken(error):
        return Exit.FAILED, (
            f"{error.filename or 'A file'}: {error.strerror}. Look at the disk and at what is "
            "mounted there, then run the command again."
        )
    return None


# What is wrong with a path that was given, or with what lies there.
_CANNOT_BE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
WITHOUT_RAY = (("jobs.ray_jobs", "ClusterGoneError"), ("jobs.cluster", "NoRayError"))


def _is_told(error: BaseException) -> bool:
    """Whether a sentence says it all, and a traceback would add nothing."""
    return _no_room(error) or _broken(error) or _is_one_of(error, *WITHOUT_RAY)


def _no_room(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _broken(error: BaseException) -> bool:
    """Whether a disk or what is mounted does not do as a disk does."""
    return isinstance(error, OSError) and error.errno in (
        errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.EBADMSG,
    )  # fmt: skip


def set_environment() -> None:
    """Switch reports to others off, where the user has not said otherwise; before any import."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@contextmanager
def scratch() -> Iterator[None]:
    """A folder for what libraries put by for themselves, removed afterwards.

    Else matplotlib would leave its list of fonts in the home folder, and torch a folder for kernels
    in the temp folder, where nobody asked for either.
    """
    from trainer.temp_folder import temp_folder

    ours = [name for name in ("MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR") if name not in os.environ]
    with temp_folder() as folder:
        os.environ |= dict.fromkeys(ours, folder)
        yield


def raise_on_sigterm() -> None:
    """Let SIGTERM unwind the process instead of ending it; after `ray.init`, which sets its own."""
    _raise_on(signal.SIGTERM)


def sent() -> signal.Signals | None:
    """The first signal that was to unwind this process.

    An exception that comes out of nowhere may meet a library's `except:` and be lost there, seen
    while libraries are imported: who owns the signals next asks here.
    """
    return _SENT[0] if _SENT else None


_SENT: list[signal.Signals] = []


def _raise_on(number: signal.Signals) -> None:
    last_s = -math.inf

    def handler(_number: int, _frame: FrameType | None) -> None:
        nonlocal last_s
        now = time.monotonic()
        before_s, last_s = last_s, now
        if is_echo(number, now - before_s):  # what ends now is not to be torn
            return
        _SENT.append(number)
        raise KeyboardInterrupt if number is signal.SIGINT else Terminated

    signal.signal(number, handler)


class StrangersError(ImportError):
    """One of our short import names is somebody else's code."""


def check_own_packages() -> None:
    """Refuse to run when one of our short import names is somebody else's code.

    Raises:
        StrangersError: Another distribution or folder provides one of PACKAGES.
    """
    home = Path(__file__).resolve().parents[1]
    owners = packages_distributions()
    for name in PACKAGES:
        if strangers := sorted(set(owners.get(name, ())) - {DISTRIBUTION}):
            raise StrangersError(
                f"Package {name!r} is also provided by {', '.join(strangers)} in this environment, "
                f"and the later install wins. Install {DISTRIBUTION} in an environment of its own."
            )
        spec = find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parents[1] != home:
            raise StrangersError(
                f"Package {name!r} resolves to {origin}, expected {home / name}. Run from another "
                "folder, or with `python -P -m jobs.<command>`."
            )


def _call(command: click.Command, words: list[str]) -> Outcome:
    check_own_packages()
    with scratch():
        outcome = command.main(words, prog_name=_name(command), standalone_mode=False)
    return outcome if isinstance(outcome, Outcome) else Outcome()


def _name(command: click.Command) -> str:
    return DISTRIBUTION if isinstance(command, click.Group) else f"{DISTRIBUTION} {command.name}"


def _is_one_of(error: BaseException, *families: tuple[str, str]) -> bool:
    # Looked up where the family lives and only if it was loaded: `longrow --help` imports no room.
    kinds = (getattr(sys.modules.get(module), name, None) for module, name in families)
    return any(isinstance(error, kind) for kind in kinds if kind is not None)


def _click_message(error: click.ClickException) -> str:
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message} See `{context.command_path} --help`." if context else message


def _keep_traceback(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    handle, path = tempfile.mkstemp(prefix="longrow-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return f"(The whole traceback is in {path}; --debug shows it here.)"
