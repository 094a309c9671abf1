"""What stands between the driver and its workers hangs, or is not there yet: the run is not held.

A killed process is told by its sockets; one that is frozen by SIGSTOP says nothing at all.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.test_run_death import ROOT, STEPS, Box
from trainer.stop_request import DRIVER

HANG = ("--set", "cluster.hang_timeout_s=20")  # of a busy machine that starts Ray


@pytest.fixture
def box(tiny_store: Path) -> Iterator[Box]:
    box = Box(tiny_store)
    yield box
    box.remove()


def start(box: Box, *words: str, launcher: str = "ray") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*box.command(launcher=launcher), *words],
        cwd=ROOT,
        env=box.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def freeze(box: Box, name: str) -> None:
    victims = [pid for pid, command in box.processes().items() if name in command]
    os.kill(victims[0], signal.SIGSTOP)


def test_a_frozen_board_controller_and_worker_cost_a_restart_and_do_not_hold_the_run(
    box: Box,
) -> None:
    run = start(box, *HANG)
    box.wait_for(lambda: len(box.steps()) >= 50)
    for name in ("BoardActor", "TrainController", "RayTrainWorker"):
        freeze(box, name)
    box.wait_for(lambda: len(box.folder.attempts()) >= 2, seconds=180)
    box.wait_for(lambda: box.steps()[-1][0] >= 60)
    freeze(box, "TrainController")  # it would have brought the verdict
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    assert "Ray Train's controller does not answer: it is ended." in errors
    assert [step for step, _ in box.steps()] == list(range(1, STEPS + 1))
    assert len(box.folder.attempts()) == 2
    assert box.left_over() == ({}, [], [])


def test_a_stop_does_not_wait_for_workers_that_are_not_there_yet(box: Box) -> None:
    run = start(box)
    box.wait_for(lambda: any("BoardActor" in name for name in box.processes().values()))
    run.send_signal(signal.SIGTERM)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 143, errors
    assert "before the first step" in errors
    assert box.folder.attempts() == []
    assert box.left_over() == ({}, [], [])


def test_longrow_stop_is_heard_while_ray_starts(box: Box) -> None:
    run = start(box)
    box.wait_for((box.folder.path / DRIVER).exists)
    assert not any("raylet" in name for name in box.processes().values())
    stop = [sys.executable, "-m", "jobs.stop", str(box.folder.path), "--json"]
    told = subprocess.run(
        stop, cwd=ROOT, env=box.environment, capture_output=True, text=True, check=False
    )
    _, errors = run.communicate(timeout=60)
    assert (told.returncode, run.returncode) == (0, 143), told.stderr + errors
    assert '"was_running": true, "ended": true' in told.stdout
    assert box.folder.attempts() == []
    assert box.left_over() == ({}, [], [])


def test_a_stop_does_not_wait_for_ranks_that_never_come(box: Box) -> None:
    others = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    run = subprocess.Popen(
        box.command(launcher="local"),
        cwd=ROOT,
        env=box.environment | others,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    box.wait_for((box.folder.path / DRIVER).exists)
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130, errors
    assert box.left_over() == ({}, [], [])


def test_longrow_stop_ends_a_run_of_another_process_with_its_step_saved(box: Box) -> None:
    run = start(box, "--set", "trainer.steps=100000", launcher="local")
    box.wait_for(lambda: len(box.steps()) >= 5)
    stop = [sys.executable, "-m", "jobs.stop", str(box.folder.path), "--json"]
    told = subprocess.run(
        stop, cwd=ROOT, env=box.environment, capture_output=True, text=True, check=False
    )
    _, errors = run.communicate(timeout=60)
    assert (told.returncode, run.returncode) == (0, 143), told.stderr + errors
    assert "`longrow stop` was called" in errors
    last = box.steps()[-1][0]
    assert f'"was_running": true, "ended": true, "step": {last}' in told.stdout
    again = subprocess.run(
        stop, cwd=ROOT, env=box.environment, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0
    assert "was not running" in again.stdout
    assert box.left_over() == ({}, [], [])
