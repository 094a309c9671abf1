"""The doctor finds what was planted, says what to do, and leaves nothing behind."""

import base64
import errno
import json
import os
import platform
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import doctor_machine, doctor_services, doctor_storage
from jobs.doctor import Finding
from jobs.doctor_machine import no_gpu, packages, python, shared_memory
from jobs.doctor_services import mlflow_server, ray_cluster
from jobs.doctor_storage import clock_finding, storage
from jobs.entry import Exit
from tests.answering import answering
from tests.command import code_of

ROOT = Path(__file__).parents[2]
MUCH = 10**18  # bytes that no disk has


def states(findings: list[Finding]) -> list[str]:
    return [finding.state for finding in findings]


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    """A web server that answers as the test says: `code`, `body`, `date`; it keeps the headers."""
    with answering() as server:
        yield server


def test_where_nothing_is_wrong_it_says_so_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor_machine, "LEAST_SHARED", 0)  # the machine of the tests may be small
    words = ("doctor", "--storage", str(tmp_path / "runs"), "--free-gb", "0", "--json")
    assert code_of(*words) is Exit.DONE
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["wrong"] == 0
    names = [finding["name"] for finding in facts["findings"]]
    assert names[:6] == ["python", "packages", "gpus", "shared memory", "ray", "mlflow"]
    assert list(tmp_path.iterdir()) == []


def test_one_wrong_thing_makes_the_command_fail_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("doctor", "--storage", str(tmp_path), "--free-gb", "1e9", "--json")
    assert code_of(*words) is Exit.FAILED
    told = capsys.readouterr().out
    assert "wrong space          " in told
    assert "-> Make room or name another place." in told
    assert json.loads(told.splitlines()[-1])["exit_code"] == 1


def test_an_old_python_is_wrong_and_the_limit_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == doctor_machine.LEAST_PYTHON
    assert python("3.10.14").state == "wrong"
    assert python("3.14.0").state == "ok"


def test_a_version_that_was_not_tested_is_a_note_and_one_too_old_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text("torch==9.9.9\nclick==8.5.1\n", encoding="utf-8")
    found = packages(pins)
    assert found.state == "note"
    assert "torch" in found.found
    assert "click" not in found.found
    monkeypatch.setattr(doctor_machine, "requires", lambda _: ["torch>=99", "nothing-such>=1"])
    found = packages(None)
    assert found.state == "wrong"
    assert "torch" in found.found
    assert "nothing-such is missing" in found.found


def test_a_driver_without_a_gpu_build_of_torch_is_wrong() -> None:
    assert no_gpu(2, driver=False, build="2.13.0+cpu").state == "ok"
    found = no_gpu(2, driver=True, build="2.13.0+cpu")
    assert found.state == "wrong"
    assert "2.13.0+cpu" in found.found


def test_shared_memory_below_rays_object_store_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared_memory(tmp_path, memory=1).state == "ok"
    monkeypatch.setattr(doctor_machine, "RAYS_MOST", MUCH)
    monkeypatch.setattr(doctor_machine, "LEAST_SHARED", 0)
    assert shared_memory(tmp_path, memory=MUCH).state == "note"
    monkeypatch.setattr(doctor_machine, "LEAST_SHARED", MUCH)
    found = shared_memory(tmp_path, memory=MUCH)
    assert found.state == "wrong"
    assert "--shm-size" in found.do


def test_storage_is_tried_for_real_and_swept(tmp_path: Path) -> None:
    assert states(storage(str(tmp_path / "a" / "b"), need=0)) == ["ok", "ok", "ok"]
    assert list(tmp_path.iterdir()) == []
    assert states(storage("memory://doctor/runs", need=0)) == ["ok"]
    assert doctor_storage.list_folder("memory://doctor/runs") == {}


@pytest.mark.parametrize("url", ["/proc/runs", "nosuch://bucket/runs"])
def test_storage_that_takes_nothing_is_wrong(url: str) -> None:
    (found,) = storage(url, need=0)
    assert found.state == "wrong"
    assert found.found.startswith(url)
    assert found.found.count(url) == 1
    assert "write, list and delete" in found.do
    assert ("AWS_ACCESS_KEY_ID" in found.do) is ("://" in url)


@pytest.mark.parametrize(
    ("number", "do"),
    [
        (errno.ENOSPC, "Make room"),
        (errno.EDQUOT, "Make room"),
        (errno.EROFS, "mounted for writing"),
        (errno.EACCES, "this user may write"),
        (errno.ENOTDIR, "Name a folder"),
    ],
)
def test_what_to_do_fits_what_the_disk_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, do: str
) -> None:
    def refuse(_url: str, _data: bytes) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path))

    monkeypatch.setattr(doctor_storage, "write_whole", refuse)
    (found,) = storage(str(tmp_path / "runs"), need=0)
    assert os.strerror(number) in found.found
    assert do in found.do
    assert "object stores" not in found.do


def test_a_temp_folder_without_room_is_said_to_be_moved_and_holds_no_checkpoint() -> None:
    found = doctor_storage.scratch(need=MUCH)
    assert found.state == "wrong"
    assert "TMPDIR" in found.do
    assert "checkpoint" not in found.do


def test_a_bucket_that_is_missing_is_told_and_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Buckets:
        def exists(self, path: str) -> bool:
            return path == "there"

    monkeypatch.setattr(doctor_storage, "filesystem", lambda url: (Buckets(), url[5:]))
    (found,) = storage("s3://misspelt/runs", need=0)
    assert found.state == "wrong"
    assert "there is no misspelt" in found.found


def test_a_file_where_the_folder_should_be_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    (found,) = storage(str(tmp_path / "runs"), need=0)
    assert found.state == "wrong"


@pytest.mark.parametrize("broken", ["list_folder", "read_bytes", "remove"])
def test_storage_that_lies_is_wrong(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = {"list_folder": {}, "read_bytes": b"other", "remove": None}
    monkeypatch.setattr(doctor_storage, broken, lambda _url: lies[broken])
    (found,) = storage(str(tmp_path), need=0)
    assert found.state == "wrong"
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_and_a_wrong_clock_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert states(storage(str(tmp_path), need=MUCH)) == ["ok", "wrong", "ok"]
    real = doctor_storage.time.time
    for ahead, word in ((3600, "behind"), (-3600, "ahead of")):
        with monkeypatch.context() as patch:
            patch.setattr(doctor_storage.time, "time", lambda ahead=ahead: real() + ahead)
            clock = storage(str(tmp_path), need=0)[2]
        assert clock.state == "wrong"
        assert word in clock.found
    assert clock_finding("clock", "it", 1.0).state == "ok"


def test_mlflow_that_answers_is_ok_with_its_clock(server: tuple[str, dict[str, Any]]) -> None:
    uri, says = server
    assert states(mlflow_server(uri, {})) == ["ok", "ok"]
    says["date"] = 0
    assert states(mlflow_server(uri, {})) == ["ok", "wrong"]


@pytest.mark.parametrize(
    ("code", "body", "do"),
    [
        (403, "Invalid Host header - possible DNS rebinding attack detected", "--allowed-hosts"),
        (403, "Permission denied", "MLFLOW_TRACKING_USERNAME"),
        (401, "", "MLFLOW_TRACKING_USERNAME"),
        (404, "no such page", "server's log"),
        (200, '{"hello": 1}', "the address of MLflow itself"),
        (200, "[]", "the address of MLflow itself"),
        (200, "<html>", "Start it"),
    ],
)
def test_mlflow_that_turns_us_away_is_told_apart(
    code: int, body: str, do: str, server: tuple[str, dict[str, Any]]
) -> None:
    uri, says = server
    says |= {"code": code, "body": body}
    (found,) = mlflow_server(uri, {})
    assert found.state == "wrong"
    assert do in found.do


def test_mlflow_is_asked_with_our_name_which_is_not_told(
    server: tuple[str, dict[str, Any]],
) -> None:
    uri, says = server
    who = {"MLFLOW_TRACKING_USERNAME": "ann", "MLFLOW_TRACKING_PASSWORD": "secret"}
    told = mlflow_server(uri, who)
    assert says["asked"]["Authorization"].startswith("Basic ")
    assert "secret" not in str(told)
    both = mlflow_server(uri, who | {"MLFLOW_TRACKING_TOKEN": "token"})
    assert says["asked"]["Authorization"].startswith("Basic ")  # as MLflow's client has it
    alone = mlflow_server(uri, {"MLFLOW_TRACKING_TOKEN": "token", "MLFLOW_TRACKING_USERNAME": "a"})
    assert says["asked"]["Authorization"] == "Bearer token"
    assert "token" not in str((both, alone))
    (found,) = mlflow_server(uri.replace("://", "://ann:secret@"), {})
    assert found.state == "wrong"
    assert "secret" not in str(found)


def test_mlflow_is_asked_with_the_name_in_its_own_file_too(
    server: tuple[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, says = server
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".mlflow" / "credentials"
    file.parent.mkdir()
    file.write_text("[mlflow]\nmlflow_tracking_username = ann\nmlflow_tracking_password = ab\n")
    assert states(mlflow_server(uri, {})) == ["ok", "ok"]
    sent = says["asked"]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent) == b"ann:ab"
    file.write_text("no table")
    mlflow_server(uri, {})
    assert "Authorization" not in says["asked"]


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns"])
def test_a_folder_is_no_address_of_mlflow(uri: str) -> None:
    (found,) = mlflow_server(uri, {})
    assert found.state == "wrong"
    assert "sqlite:///" in found.do


def test_nobody_at_an_address_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (found,) = mlflow_server(f"http://127.0.0.1:{port}", {})
    assert "does not answer" in found.found
    (found,) = ray_cluster(f"127.0.0.1:{port}", {})
    assert found.state == "wrong"
    assert "nobody answers there" in found.found
    assert "RAY_AUTH_TOKEN" in found.do


def test_the_port_of_rays_client_is_named_as_such() -> None:
    (found,) = ray_cluster("ray://127.0.0.1:10001", {})
    assert found.state == "wrong"
    assert "Ray's client" in found.found
    assert "host:6379 or http://host:8265" in found.found


def test_a_ray_dashboard_is_asked_with_the_token(
    server: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, says = server
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc")
    told = {"ray_version": doctor_services.version("ray")}
    says["body"] = json.dumps(told | {"data": {"pythonVersion": platform.python_version()}})
    assert states(ray_cluster(uri, {"RAY_AUTH_MODE": "token"})) == ["ok", "note"]  # it asks nobody
    assert says["asked"].get("Authorization") is None  # the last question came without
    says["wants"] = "Bearer abc"
    assert states(ray_cluster(uri, {})) == ["ok", "ok"]
    says["wants"] = "Bearer abcd"
    (found,) = ray_cluster(uri, {})
    assert "our token is not its token. Set RAY_AUTH_TOKEN to the cluster's" in found.found
    assert "abc" not in str(found)
    says |= {"wants": None, "body": says["body"].replace(told["ray_version"], "2.0.0")}
    assert states(ray_cluster(uri, {})) == ["wrong", "note"]
    assert "2.0.0" in ray_cluster(uri, {})[0].found
    says["body"] = json.dumps(told | {"data": {"pythonVersion": "3.99.1"}})
    (_, found, _) = ray_cluster(uri, {})
    assert found.state == "note"
    assert "3.99.1" in found.found
