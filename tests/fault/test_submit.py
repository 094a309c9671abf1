"""Runs as jobs on a real Ray cluster: submitted, watched, stopped, killed, and gone on with.

One head for all. The commands are those of docs/cluster.md, read from that page.
"""

import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from jobs.entry import Exit
from tests.command import code_of
from tests.ranks import free_port, ranks_here
from tests.ray_head import NAMES, Head
from tests.tiny_runs import TOML
from trainer.checkpoint import newest_whole, step_of
from trainer.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cluster.md"
OURS = {name: secrets.token_hex(16) for name in NAMES}  # what whoever submits holds
ON = 25  # steps that a run is let go on before something is done to it
# The learning rate does not look at the last step, which a run has none of until it is told one.
REST = """
[trainer]
steps = 1_000_000
threads = 1
[optimizer]
schedule = "constant"
warmup_steps = 5
[checkpoint]
every = 10
[tracking]
uri = "{uri}"
[cluster]
workers = 2
"""


def told_commands() -> list[str]:
    """The command lines of the page, in order."""
    blocks = PAGE.read_text(encoding="utf-8").split("```")[1::2]
    bare = [block for block in blocks if block.startswith("\n")]  # the others are of a language
    return [line for block in bare for line in block.strip().splitlines()]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    (start,) = (line for line in told_commands() if line.startswith("ray start --head"))
    head = Head(shlex.split(start))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_AUTH_TOKEN", head.token)
            head.wait_until_it_answers()
            yield head
    finally:
        head.end()


@pytest.fixture(autouse=True)
def client(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as a client: the address in the environment, beside the token."""
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", head.address)
    for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in OURS.items():  # the nodes have their own
        monkeypatch.setenv(name, value)


class Told:
    """What a command of ours printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def by(self, *words: str, code: Exit = Exit.DONE) -> dict[str, Any]:
        """Its facts, and its text under "out" and "err"."""
        self._capsys.readouterr()
        got = code_of(*words, "--json")
        out, err = self._capsys.readouterr()
        with self._capsys.disabled():
            click.echo(f"\n$ longrow {shlex.join(words)}\n{_short(err)}{_short(out)}", nl=False)
        assert got is code, out + err
        assert "Traceback" not in out + err
        return {**json.loads(out.splitlines()[-1]), "out": out, "err": err}


def _short(text: str) -> str:
    """What stands in the log of the test: without the config that a run prints."""
    lines = [line for line in text.splitlines() if not re.match(r"\w+ = |\[\w+\]|$", line)]
    return "".join(f"  {line[:150]}\n" for line in lines)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    return Told(capsys)


def config_of(head: Head, store: Path, name: str, *, uri: str = "off") -> Path:
    path = head.path / f"{name}.toml"
    text = (TOML + REST).format(folder=head.path / "runs", store=store, uri=uri)
    path.write_text(text.replace('name = "run"', f'name = "{name}"'), encoding="utf-8")
    return path


def steps_of(folder: RunFolder) -> list[tuple[int, float]]:
    return [(line["step"], line["train/loss"]) for line in folder.lines() if line["kind"] == "step"]


def wait_for(holds: Callable[[], bool], *, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.2)


def newest_step(folder: RunFolder) -> int:
    newest, _ = newest_whole(folder.checkpoints, folder.attempts())
    return step_of(newest) if newest else 0


def wait_for_steps(folder: RunFolder, *, attempt: int) -> None:
    """Until that attempt has begun and gone on from where it did."""

    def gone_on() -> bool:
        attempts, steps = folder.attempts(), steps_of(folder)
        if len(attempts) < attempt or not steps:
            return False
        return steps[-1][0] >= attempts[-1].start_step + ON

    wait_for(gone_on)


def test_the_commands_of_the_page_do_what_it_says(
    head: Head, tiny_store: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = head.path / "desk"  # it sees the run by the cluster alone
    desk.mkdir()
    config_of(head, tiny_store, "mine").rename(desk / "run.toml")
    folder = RunFolder(head.path / "runs" / "mine")
    monkeypatch.chdir(desk)
    heard: dict[str, dict[str, Any]] = {}
    stopped = 0
    for line in told_commands():
        words = shlex.split(line.replace("/shared", str(head.path)))
        if words[0] != "longrow":
            continue
        if "--follow" in words:  # to an end that is near
            words += ["--set", f"trainer.steps={newest_step(folder) + ON}"]
        heard[words[1]] = told.by(*words[1:])
        if words[1] == "submit" and "--follow" not in words:
            wait_for_steps(folder, attempt=1)
        if words[1] == "stop":
            stopped = steps_of(folder)[-1][0]
            assert newest_step(folder) == stopped
            assert f"mine-1 stopped. Stopped after step {stopped} " in heard["stop"]["out"]
            status = told.by("status", "mine-1")
            assert (status["status"], status["step"]) == ("STOPPED", stopped)
            assert status["checkpoint"].startswith(f"step_{stopped:08d}")
    assert heard["doctor"]["wrong"] == 0
    assert heard["status"]["status"] == "RUNNING"
    assert [job["job"] for job in heard["list"]["jobs"]] == ["mine-1"]
    assert "2 workers of 1 threads" in heard["logs"]["out"]
    assert heard["submit"]["job"] == "mine-2"
    assert heard["submit"]["status"] == "SUCCEEDED"
    assert "1 workers of 1 threads" in heard["submit"]["out"]
    assert [step for step, _ in steps_of(folder)] == list(range(1, stopped + ON + 1))


def test_a_job_that_was_stopped_and_one_that_was_killed_go_on_and_lose_not_one_bit(
    head: Head, tiny_store: Path, told: Told
) -> None:
    uri = f"sqlite:///{head.path}/mlflow.db"
    config = config_of(head, tiny_store, "lost", uri=uri)
    config.rename(head.path / "run.toml")
    (line,) = (line for line in told_commands() if line.startswith("ray job submit"))
    words = shlex.split(line.replace("/shared", str(head.path)))
    words[3:3] = ["--no-wait", "--submission-id", "plain"]
    # A head that has just come up may have no agent yet that starts jobs.
    wait_for(lambda: head.ray(*words[1:], cwd=ROOT).returncode == 0)
    folder = RunFolder(head.path / "runs" / "lost")
    wait_for_steps(folder, attempt=1)
    assert told.by("stop", "plain")["was_running"]
    last = steps_of(folder)[-1][0]
    assert f"Stopped after step {last} (SIGTERM was received)" in told.by("logs", "plain")["out"]
    assert newest_step(folder) == last
    assert _recorded(folder) == ("KILLED", list(range(1, last + 1)))

    config = str(head.path / "run.toml")
    assert told.by("submit", config)["job"] == "lost-1"
    wait_for_steps(folder, attempt=2)
    refused = told.by("submit", config, code=Exit.BAD_USE)
    assert "one run has one writer" in refused["error"]
    _see_where_it_runs(head, _driver(folder))
    _see_that_nothing_is_told(head)
    os.kill(_driver(folder), signal.SIGKILL)
    wait_for(lambda: told.by("status", "lost")["status"] != "RUNNING")
    assert told.by("status", "lost")["status"] == "FAILED"

    steps = newest_step(folder) + ON
    words = ["submit", config, "--set", f"trainer.steps={steps}", "--follow"]
    assert told.by(*words)["job"] == "lost-2"
    assert [attempt.start_step > 0 for attempt in folder.attempts()] == [False, True, True]
    assert steps_of(folder) == _undisturbed(head, config, steps)
    assert _recorded(folder) == ("FINISHED", list(range(1, steps + 1)))


def _see_where_it_runs(head: Head, driver: int) -> None:
    """The driver and both workers run what was sent, on the cluster, and know what we told them."""
    workers = [pid for pid, name in head.processes().items() if "RayTrainWorker" in name]
    assert len(workers) == 2
    for pid in (driver, *workers):
        assert "/working_dir_files/_ray_pkg_" in str(Path(f"/proc/{pid}/cwd").readlink())
    assert b"RAY_JOB_STOP_WAIT_TIME_S=120" in _environment(driver)
    assert all(b"CUBLAS_WORKSPACE_CONFIG=:4096:8" in _environment(pid) for pid in workers)


def _see_that_nothing_is_told(head: Head) -> None:
    """Of what the nodes and we hold, no command and no page of a Ray that works knows anything."""
    pages = ("/api/jobs/", "/api/v0/actors?detail=true", "/api/v0/runtime_envs?detail=true")
    told = {f"/proc/{pid}/cmdline": command for pid, command in head.processes().items()}
    for page in pages:
        request = urllib.request.Request(  # noqa: S310 - our own loopback port
            head.address + page, headers={"Authorization": f"Bearer {head.token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            told[page] = answer.read().decode()
    assert "RAY_JOB_STOP_WAIT_TIME_S" in told["/api/jobs/"]
    held = {*head.secrets.values(), *OURS.values()}
    assert [where for where, text in told.items() if any(one in text for one in held)] == []


def _environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def _driver(folder: RunFolder) -> int:
    """The process id of the run's driver."""
    return int((folder.read_json("driver.json") or {})["process"]["pid"])


def _undisturbed(head: Head, config: str, steps: int) -> list[tuple[int, float]]:
    """The losses of the same run by two processes without Ray, that nothing happens to."""
    words = [sys.executable, "-m", "jobs.train", config, "--set", f"trainer.steps={steps}"]
    words += ["--set", "run.name=whole", "--set", "cluster.launcher=local"]
    words += ["--set", "tracking.uri=off"]
    processes = [
        subprocess.Popen(
            words,
            cwd=ROOT,
            env=head.environment | rank | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in ranks_here(2)
    ]
    said = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    return steps_of(RunFolder(head.path / "runs" / "whole"))


def _recorded(folder: RunFolder) -> tuple[str, list[int]]:
    """The run's status in MLflow, and the steps it has a loss for."""
    from mlflow.tracking import MlflowClient

    known = folder.read_json("mlflow.json") or {}
    client = MlflowClient(tracking_uri=known["uri"])
    history = client.get_metric_history(known["run_id"], "train/loss")
    return client.get_run(known["run_id"]).info.status, [metric.step for metric in history]


def test_what_does_not_fit_the_cluster_is_told_in_a_sentence_and_nothing_is_sent(
    head: Head, tiny_store: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(config_of(head, tiny_store, "never"))
    nobody = ("--address", f"http://127.0.0.1:{free_port()}")
    assert "nobody answers" in told.by("submit", config, *nobody, code=Exit.BAD_USE)["error"]
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)
    wrong = told.by("submit", config, code=Exit.BAD_USE)["error"]
    assert "our token is not its token" in wrong
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("HOME", str(head.path / "home"))
    assert "asks for a token" in told.by("submit", config, code=Exit.BAD_USE)["error"]
    monkeypatch.setenv("RAY_AUTH_TOKEN", head.token)
    assert "is no job" in told.by("status", "never", code=Exit.BAD_USE)["error"]
    assert "never" not in {job["run"] for job in told.by("list")["jobs"]}


def test_no_token_and_no_password_is_told_to_anybody(head: Head, told: Told) -> None:
    """After all that the tests above did: run folders, MLflow's file, Ray's logs, what we say."""
    held = [one.encode() for one in (*head.secrets.values(), *OURS.values())]
    jobs = told.by("list")
    ours = [path for path in head.path.rglob("*") if path.is_file() and "venv" not in path.parts]
    said = (jobs["out"] + jobs["err"]).encode()
    words = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
    kept = [path for path in ours if any(one in path.read_bytes() for one in held)]
    assert [str(path.relative_to(head.path)) for path in kept] == []
    assert not [line for line in [said, *words] if any(one in line for one in held)]


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:  # it has ended
        return False
    return True
