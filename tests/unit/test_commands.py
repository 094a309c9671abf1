"""The list of commands, and what each of them has."""

import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import click
import pytest

from jobs.cli import COMMANDS, longrow
from jobs.entry import Job

GOLDEN_COMMANDS = Path(__file__).parents[1] / "golden" / "commands.txt"


def test_the_commands_are_those_that_were_promised() -> None:
    assert list(COMMANDS) == GOLDEN_COMMANDS.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_job_whose_first_sentence_is_in_the_list(name: str) -> None:
    command = import_module(f"jobs.{name.replace('-', '_')}").command
    assert isinstance(command, Job)
    assert command.name == name
    assert (command.help or "").splitlines()[0] == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is(name: str) -> None:
    command = import_module(f"jobs.{name.replace('-', '_')}").command
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_help_is_there_within_a_second_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom jobs.cli import longrow\n"
        "longrow.main(['--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'ray', 'mlflow', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert time.monotonic() - start < 5  # a second on an idle machine
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(name in done.stdout for name in COMMANDS)


def test_an_unknown_command_is_answered_with_the_known_ones() -> None:
    with pytest.raises(click.UsageError, match=r"no command 'biuld'. There are: .*build"):
        longrow.main(["biuld"], standalone_mode=False)
