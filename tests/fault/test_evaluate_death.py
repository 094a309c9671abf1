"""An evaluation by several workers, one of them killed, or Ctrl-C pressed: nothing is left."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.test_run_death import Box
from tests.tiny_runs import tiny_weights


@pytest.fixture
def box(tiny_store: Path) -> Iterator[Box]:
    box = Box(tiny_store)
    tiny_weights(tiny_store, box.path / "weights")
    yield box
    box.remove()


IMPATIENT = """
from jobs.entry import run
from jobs.evaluate import command
from trainer import scorer_actor

scorer_actor.SILENT_S = 20.0  # of a busy machine that starts Ray
run(command)
"""


def begin(box: Box, *python: str) -> subprocess.Popen[str]:
    """An evaluation that does not end before somebody has looked."""
    lengths = ",".join(map(str, range(1, 400)))
    options = ("--memory", lengths, "--segment", "1", "--workers", "2", "--json")
    return subprocess.Popen(
        [
            sys.executable,
            *(python or ("-m", "jobs.evaluate")),
            "weights",
            "--store",
            str(box.store),
            *options,
        ],
        cwd=box.path,
        env=box.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def scorers(box: Box) -> list[int]:
    return [pid for pid, command in box.processes().items() if command.startswith("ray::Scorer")]


def test_a_killed_worker_ends_the_evaluation_with_its_name_and_nothing_is_left(box: Box) -> None:
    process = begin(box)
    box.wait_for(lambda: len(scorers(box)) == 2)
    os.kill(scorers(box)[1], signal.SIGKILL)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 1, err
    assert re.search(r"longrow: Worker [01] of 2 ended before its rows did", err)
    assert "Traceback" not in err
    assert "of 2 ended" in json.loads(out.splitlines()[-1])["error"]
    assert box.left_over() == ({}, [], [])
    assert not (box.path / "weights" / "evaluations").exists()


def test_ctrl_c_ends_all_workers_and_leaves_nothing(box: Box) -> None:
    process = begin(box)
    box.wait_for(lambda: len(scorers(box)) == 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the foreground
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert err.strip().endswith("longrow: Stopped by Ctrl-C.")
    assert "Traceback" not in err
    assert box.left_over() == ({}, [], [])
    assert not (box.path / "weights" / "evaluations").exists()


def test_a_frozen_worker_ends_the_evaluation_with_its_name_and_nothing_is_left(box: Box) -> None:
    process = begin(box, "-c", IMPATIENT)
    box.wait_for(lambda: len(scorers(box)) == 2)
    os.kill(scorers(box)[1], signal.SIGSTOP)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 1, err
    assert re.search(r"longrow: Worker [01] of 2 has not answered for \d+ s", err)
    assert "Traceback" not in err
    assert "it hangs" in json.loads(out.splitlines()[-1])["error"]
    assert box.left_over() == ({}, [], [])
    assert not (box.path / "weights" / "evaluations").exists()
