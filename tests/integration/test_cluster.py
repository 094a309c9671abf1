"""A Ray of our own: it works, nobody else gets in, and nothing of it is left."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.cluster import NoRayError, local_ray
from jobs.entry import Exit, explain
from trainer.errors import ConfigError

WORK = """
import os, sys, time
from jobs.cluster import local_ray
from jobs.entry import raise_on_sigterm

if "late" in sys.argv:  # as on a busy machine: Ray looks for its node for 30 s, and in vain
    import ray._private.node, ray._private.services
    real = ray._private.services.get_node

    class Clock:
        now, sleep = 0.0, time.sleep

        def time(self):
            return time.time()

        def monotonic(self):
            self.now += 7
            return self.now

    def blind(*given):
        if clock.now < 30:
            raise RuntimeError("not yet")
        if clock.now < 1000:
            print("late", flush=True)
            clock.now = 1000
            raise RuntimeError("not yet")
        return real(*given)

    clock = ray._private.node.time = Clock()
    ray._private.services.get_node = blind

with local_ray(num_cpus=1):
    import ray
    raise_on_sigterm()
    print(ray.get(ray.remote(lambda: 6 * 7).remote()), ray.cluster_resources()["CPU"], flush=True)
    print(os.environ["RAY_AUTH_MODE"], len(os.environ["RAY_AUTH_TOKEN"]), flush=True)
    if "wait" in sys.argv:
        print("ready", flush=True)
        time.sleep(60)
print(sorted(name for name in os.environ if name.startswith("RAY_A")), flush=True)
"""


@pytest.fixture
def box() -> Iterator[Path]:
    """A home and a temp folder of one process, under a name short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    (folder / "home").mkdir()
    (folder / "tmp").mkdir()
    yield folder
    shutil.rmtree(folder)


def start(box: Path, mark: str, *words: str) -> subprocess.Popen[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "HOME": str(box / "home"),
        "TMPDIR": str(box / "tmp"),
        "RAY_ADDRESS": "127.0.0.1:1",  # somebody else's: never joined
        "LONGROW_TEST_MARK": mark,
    }
    return subprocess.Popen(
        [sys.executable, "-c", WORK, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def alive(mark: str) -> list[str]:
    """Processes that were started under `mark`: they carry it in their environment."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"LONGROW_TEST_MARK={mark}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it ended while we looked, or is another user's
    return found


def assert_nothing_is_left(box: Path, mark: str, *, within_s: float = 10) -> None:
    until = time.monotonic() + within_s
    while alive(mark) and time.monotonic() < until:
        time.sleep(0.1)
    assert alive(mark) == []
    assert list((box / "home").iterdir()) == []
    assert list((box / "tmp").iterdir()) == []


def test_our_own_ray_works_and_leaves_nothing(box: Path) -> None:
    mark = uuid.uuid4().hex
    out, err = start(box, mark).communicate(timeout=120)
    assert out.splitlines() == ["42 1.0", "token 64", "['RAY_ADDRESS']"], err
    assert_nothing_is_left(box, mark)


def test_a_stop_by_sigterm_leaves_nothing_however_often_ctrl_c_follows(box: Path) -> None:
    mark = uuid.uuid4().hex
    process = start(box, mark, "wait")
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    for _ in range(6):  # while Ray is being ended
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert_nothing_is_left(box, mark)


def test_a_cluster_that_does_not_answer_is_told_with_its_address() -> None:
    with (
        pytest.raises(ConfigError, match=r"cluster.address = '127.0.0.1:1'"),
        local_ray(address="127.0.0.1:1"),
    ):
        pass


def test_a_ray_that_comes_up_too_late_is_started_again(box: Path) -> None:
    mark = uuid.uuid4().hex
    out, err = start(box, mark, "late").communicate(timeout=240)
    assert out.splitlines() == ["late", "42 1.0", "token 64", "['RAY_ADDRESS']"], err
    # Agents of the first node still try to tell somebody that it is gone.
    assert_nothing_is_left(box, mark, within_s=180)


def test_a_ray_that_never_comes_up_is_told_and_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    tries: list[Path] = []

    def init(**options: Any) -> None:
        tries.append(Path(options["_temp_dir"]))
        raise Exception("The current node timed out during startup.")  # noqa: TRY002 - as Ray does

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(NoRayError, match="3 times: this machine is too busy"), local_ray():
        pass
    assert len(tries) == 3
    assert not any(folder.exists() for folder in tries)
    assert explain(NoRayError("It is busy.")) == (Exit.FAILED, "It is busy.")
