"""Ways to break a run. Each returns when the run has ended, or goes on by itself.

Those of LOCAL and MOVES take the ranks of a run without Ray; those of RAY its actors too.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit

from tests.chaos import EVERY, PATIENCE_S, ROOT, Machine, send
from trainer.checkpoint import checkpoints
from trainer.retention import PINNED
from trainer.stop_request import DRIVER

SMALL_FILE = 60_000  # bytes: manifests and lists are smaller, weights and moments are larger
WENT_WRONG, BAD_USE = 1, 2


def kill_a_worker(machine: Machine) -> None:
    """SIGKILL to one rank; the others notice and end."""
    machine.draw.choice(machine.processes).kill()
    machine.end({WENT_WRONG, -signal.SIGKILL})


def freeze_a_worker(machine: Machine) -> None:
    """SIGSTOP to one rank; the others wait no longer than cluster.hang_timeout_s."""
    victim = machine.draw.choice(machine.processes)
    victim.send_signal(signal.SIGSTOP)
    others = [process for process in machine.processes if process is not victim]
    machine.wait(lambda: all(process.poll() is not None for process in others), alive=False)
    victim.kill()
    machine.end({WENT_WRONG, -signal.SIGKILL})


def wake_the_dead(machine: Machine) -> None:
    """Freeze all of it, have it started again, and wake the old ones when that has got further."""
    old, machine.processes = machine.processes, []
    for process in old:
        process.send_signal(signal.SIGSTOP)
    before = machine.committed()
    try:
        machine.start()
        machine.wait(lambda: machine.committed() > before and machine.done() > before + EVERY)
    finally:
        for process in old:
            process.send_signal(signal.SIGCONT)
    until = time.monotonic() + PATIENCE_S
    for process in old:  # it sees that it was overtaken, or its peers do
        code = process.wait(timeout=max(1, until - time.monotonic()))
        assert code in (WENT_WRONG, BAD_USE), machine.story()


def lose_power(machine: Machine) -> None:
    """SIGKILL to all that was started, at once; what that had started ends by itself."""
    for process in machine.processes:
        process.kill()
    machine.end({-signal.SIGKILL})
    mlflow = machine.mlflow.pids() if machine.mlflow else []
    machine.wait(lambda: not set(machine.of("")) - set(mlflow))


def stop(machine: Machine) -> None:
    """Ask it to stop in one of the ways: a checkpoint of the last step, and the code for it.

    As it starts, a signal may end a process as signals do, which leaves its peers: no handlers.
    """
    number = machine.draw.choice([signal.SIGINT, signal.SIGTERM, None])
    before = machine.done()
    if number is None and (machine.folder.path / DRIVER).exists():
        command = [sys.executable, "-m", "jobs.stop", str(machine.folder.path)]
        subprocess.run(command, cwd=ROOT, env=machine.environment, check=True, capture_output=True)
    else:
        told = machine.processes if machine.draw.random() < 0.5 else machine.processes[:1]
        for process in told:
            process.send_signal(number or signal.SIGTERM)
    number = number or signal.SIGTERM
    early = {-number, WENT_WRONG} if machine.early else set[int]()
    codes = machine.end({128 + number} | early)
    if not machine.early or machine.done() > before:
        assert codes == {128 + number}, machine.story()
        assert machine.committed() == machine.done(), machine.story()


def flip_a_bit(machine: Machine) -> None:
    """Stop, then flip one bit somewhere in the newest checkpoint."""
    stop(machine)
    newest = checkpoints(machine.folder.checkpoints)[-1]
    listed = [file for file in newest.iterdir() if file.name != PINNED]  # an empty one
    file = machine.draw.choice(sorted(listed))
    data = bytearray(file.read_bytes())
    data[machine.draw.randrange(len(data))] ^= 1 << machine.draw.randrange(8)
    file.write_bytes(data)
    machine.start()
    machine.wait(lambda: machine.said("passed over and left in place"))
    assert newest.is_dir()


def fill_the_disk(machine: Machine) -> None:
    """No room for the next checkpoint; it comes back when the run has said so, or ended of it."""
    before, log = machine.committed(), machine.log().stat().st_size
    full = _no_room if machine.mounted and machine.draw.random() < 0.5 else _no_large_file
    free = full(machine)

    def noticed() -> bool:
        words = ("could not be written", "A worker failed", "No space left", "File too large")
        return machine.ended() or any(machine.said(word, after=log) for word in words)

    try:
        machine.wait(noticed, alive=False)
    finally:
        free()
    # It tried again and went on; or, without Ray, it ended, which takes a while to be seen.
    machine.wait(lambda: machine.ended() or machine.committed() > before, alive=False)
    goal = machine.done() + EVERY
    machine.wait(lambda: machine.ended() or machine.done() >= goal, alive=False)
    if machine.ended():
        assert machine.launcher == "local", machine.story()
        machine.end({WENT_WRONG})


def _no_room(machine: Machine) -> Callable[[], None]:
    """A file that takes all that is left; the disk is truly full."""
    balloon = machine.path / "runs" / "balloon"
    with balloon.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return balloon.unlink


def _no_large_file(machine: Machine) -> Callable[[], None]:
    """A limit on the size of files that the process which saves may write."""
    pids = machine.of("RayTrainWorker") if machine.launcher == "ray" else [machine.processes[0].pid]
    for pid in pids:
        prlimit(pid, RLIMIT_FSIZE, (SMALL_FILE, RLIM_INFINITY))

    def free() -> None:
        for pid in pids:
            if Path(f"/proc/{pid}").exists():
                prlimit(pid, RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))

    return free


def lock_the_record(machine: Machine) -> None:
    """Nobody can write to MLflow's database for a while; steps go on."""
    before = machine.done()
    with closing(sqlite3.connect(machine.database, timeout=30, isolation_level=None)) as held:
        held.execute("BEGIN EXCLUSIVE")
        machine.wait(lambda: machine.done() >= before + 2 * EVERY)
        held.execute("ROLLBACK")


def lose_mlflow(machine: Machine) -> None:
    """MLflow's server dies, or freezes, and comes back; steps go on."""
    assert machine.mlflow is not None
    before = machine.done()
    pids = machine.mlflow.pids()
    assert pids, machine.story()
    if dead := machine.draw.random() < 0.5:
        machine.mlflow.kill()
    else:
        for pid in pids:
            send(pid, signal.SIGSTOP)
    gone = time.monotonic() + 3  # longer than a line waits to be sent
    machine.wait(lambda: machine.done() >= before + 2 * EVERY and time.monotonic() > gone)
    if dead:
        machine.mlflow.start()
    for pid in pids:
        send(pid, signal.SIGCONT)
    machine.wait(machine.mlflow.answers)


def kill_a_ray_worker(machine: Machine) -> None:
    """SIGKILL to a process of Ray that holds a rank; a new attempt comes by itself."""
    _to_an_actor(machine, "RayTrainWorker", signal.SIGKILL)


def freeze_a_ray_worker(machine: Machine) -> None:
    """SIGSTOP to one; it is ended when nothing has moved for cluster.hang_timeout_s."""
    _to_an_actor(machine, "RayTrainWorker", signal.SIGSTOP)


def kill_the_controller(machine: Machine) -> None:
    """SIGKILL to Ray Train's controller; fit() is called again."""
    _to_an_actor(machine, "TrainController", signal.SIGKILL)


def kill_the_reader(machine: Machine) -> None:
    """SIGKILL to an actor that serves batches; steps go on."""
    _to_an_actor(machine, "RowServerActor", signal.SIGKILL, attempts=0)


def freeze_the_reader(machine: Machine) -> None:
    """SIGSTOP to one; steps go on."""
    _to_an_actor(machine, "RowServerActor", signal.SIGSTOP, attempts=0)


def kill_the_board(machine: Machine) -> None:
    """SIGKILL to the actor between driver and workers; steps go on."""
    _to_an_actor(machine, "BoardActor", signal.SIGKILL, attempts=0)


def freeze_the_board(machine: Machine) -> None:
    """SIGSTOP to it; it is replaced when it has not answered for cluster.hang_timeout_s."""
    victims = set(machine.of("BoardActor"))
    _to_an_actor(machine, "BoardActor", signal.SIGSTOP, attempts=0)
    machine.wait(lambda: bool(set(machine.of("BoardActor")) - victims))


def _to_an_actor(machine: Machine, name: str, number: int, *, attempts: int = 1) -> None:
    before, known = machine.done(), len(machine.folder.attempts())
    victims = machine.of(name)
    assert victims, machine.story()
    os.kill(machine.draw.choice(victims), number)
    machine.wait(lambda: len(machine.folder.attempts()) >= known + attempts)
    if not attempts:
        machine.wait(lambda: machine.done() >= before + EVERY)


# Those that make sense before the first step of a start.
ENDING = (kill_a_worker, lose_power, stop)
LOCAL = (
    kill_a_worker,
    fill_the_disk,
    flip_a_bit,
    lock_the_record,
    wake_the_dead,
    lose_power,
    freeze_a_worker,
    stop,
)
MOVES = (stop, lose_power, kill_a_worker)
RAY = (
    kill_a_ray_worker,
    kill_the_controller,
    lose_mlflow,
    kill_the_reader,
    kill_the_board,
    freeze_a_ray_worker,
    fill_the_disk,
    freeze_the_board,
    freeze_the_reader,
    lose_power,
    stop,
    flip_a_bit,
)
