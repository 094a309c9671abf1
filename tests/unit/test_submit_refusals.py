"""What `longrow submit` refuses before anything is sent, in a sentence and with its exit code."""

import json
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from jobs.config import read_config
from jobs.entry import Exit
from jobs.shared_paths import JOB, check_outlives_the_job, check_seen_by_all
from tests.answering import answering
from tests.command import code_of
from trainer.errors import ConfigError

FITS = ("run.folder=/shared/runs", "data.store=/shared/store")


def sets(*words: str) -> list[str]:
    return [word for each in words for word in ("--set", each)]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run's file, and an environment that says nothing of a cluster."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the-token")
    path = tmp_path / "run.toml"
    path.write_text("[run]\nname = 'run'\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def cluster() -> Iterator[tuple[str, dict[str, Any]]]:
    """A dashboard as far as it is asked before anything is sent."""
    with answering() as (uri, says):
        says["body"] = body()
        yield uri, says


def body(*, ray: str = version("ray"), python: str = platform.python_version()) -> str:
    return json.dumps({"ray_version": ray, "data": {"pythonVersion": python}})


def refusal(capsys: pytest.CaptureFixture[str], *words: str, code: Exit = Exit.BAD_USE) -> str:
    capsys.readouterr()
    assert code_of("submit", *words, "--json") is code
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    assert "the-token" not in told.err + told.out
    return str(json.loads(told.out.splitlines()[-1])["error"])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("data.store=/shared/store",), ["run.folder"]),
        (("run.folder=~/runs", "data.store=stores/mine"), ["run.folder", "data.store"]),
        ((*FITS, "data.store=memory://store"), ["data.store"]),
        ((*FITS, "data.inputs=['/shared/a', 'b/*.txt']"), ["data.inputs[1]"]),
        ((*FITS, "data.inputs=['@list.txt']"), ["data.inputs[0]"]),
        ((*FITS, "data.tokenizer=a.model", "run.init=runs/a"), ["run.init", "data.tokenizer"]),
        ((*FITS, "tracking.uri=sqlite:///mlflow.db"), ["tracking.uri"]),
        ((*FITS, "data.store=file://store"), ["data.store"]),
    ],
)
def test_a_place_that_only_this_machine_knows_is_named(
    given: Sequence[str], named: Sequence[str]
) -> None:
    with pytest.raises(ConfigError, match="removed after it") as refused:
        check_seen_by_all(read_config(sets=given))
    lines = str(refused.value).splitlines()[1:-1]
    assert [line.split(" = ")[0].strip() for line in lines] == list(named)


@pytest.mark.parametrize(
    "given",
    [
        FITS,
        ("run.folder=/r", "data.store=s3://bucket/store", "data.inputs=['@/shared/list']"),
        (*FITS, "tracking.uri=sqlite:////shared/mlflow.db"),
        (*FITS, "tracking.uri=http://mlflow:5000", "data.tokenizer=file:///shared/a.model"),
        (*FITS, "tracking.uri=off"),
    ],
)
def test_shared_folders_and_urls_are_taken(given: Sequence[str]) -> None:
    assert check_seen_by_all(read_config(sets=given))


def test_a_job_does_not_put_its_run_where_it_is_removed_with_the_job() -> None:
    relative, absolute = read_config(), read_config(sets=["run.folder=/shared/runs"])
    job = {JOB: json.dumps({"runtime_env": {"working_dir": "gcs://_ray_pkg_1.zip"}})}
    with pytest.raises(ConfigError, match="removes after it, checkpoints and all"):
        check_outlives_the_job(relative, job)
    check_outlives_the_job(absolute, job)
    check_outlives_the_job(relative, {})
    check_outlives_the_job(relative, {JOB: json.dumps({"runtime_env": {}})})


def test_what_cannot_be_a_job_is_refused_before_the_cluster_is_asked(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "data.store is empty" in refusal(capsys, config)
    local = refusal(capsys, config, *sets(*FITS, "cluster.launcher=local"))
    assert "starts no workers on a cluster" in local
    assert "no cluster's address" in refusal(capsys, config, *sets(*FITS))
    for wrong in ("auto", "10.0.0.1:6379", "ray://head:10001"):
        told = refusal(capsys, config, *sets(*FITS), "--address", wrong)
        assert "http://HOST:8265" in told


def test_an_mlflow_that_only_this_machine_knows_is_refused_too(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    assert "tracking.uri" in refusal(capsys, config, *sets(*FITS))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:secret@mlflow:5000")
    assert "secret" not in refusal(capsys, config, *sets(*FITS))


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({"ray": "2.9.0"}, "runs Ray 2.9.0, and Ray >=2.60 is wanted"),
        ({"python": "3.10.2"}, "runs Python 3.10.2, and Python >=3.11 is wanted"),
    ],
)
def test_versions_that_the_project_cannot_run_on_are_refused_and_nothing_is_sent(
    there: dict[str, str],
    told: str,
    config: str,
    cluster: tuple[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri, says = cluster
    says["body"] = body(**there)
    assert told in refusal(capsys, config, *sets(*FITS), "--address", uri)
    assert {line.split()[0] for line in says["lines"]} == {"GET"}


def test_other_versions_that_will_do_are_told() -> None:
    from jobs.cluster_look import Seen
    from jobs.ray_jobs import fits

    ours = Seen(version=version("ray"), python=platform.python_version(), resources={})
    assert fits(ours) == ""
    told = fits(Seen(version="2.99.0", python="3.14.1", resources={}))
    assert f"Ray 2.99.0 (here {version('ray')})" in told
    assert "Python 3.14.1" in told


def test_something_else_at_the_address_is_told(
    config: str, cluster: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    uri, says = cluster
    for answer in ('{"experiments": []}', "<html>", "[]"):
        says["body"] = answer
        assert "no dashboard of Ray" in refusal(capsys, config, *sets(*FITS), "--address", uri)
    says["code"] = 500
    assert "answers 500" in refusal(capsys, config, *sets(*FITS), "--address", uri)


def test_a_cluster_that_goes_away_is_told_as_one_and_not_as_bad_use(
    config: str, cluster: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    uri, _ = cluster  # it answers who it is, and to no other question as Ray would
    told = refusal(capsys, config, *sets(*FITS), "--address", uri, code=Exit.FAILED)
    assert told.startswith(f"The cluster at {uri} does not do what it was asked")


def test_a_token_may_stand_in_a_file(
    config: str,
    cluster: tuple[str, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri, says = cluster
    says["wants"] = "Bearer of-the-file"
    told = refusal(capsys, config, *sets(*FITS), "--address", uri)
    assert "our token is not its token" in told
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert "cannot be read" in refusal(capsys, config, *sets(*FITS), "--address", uri)
    (tmp_path / "token").write_text("of-the-file\n", encoding="utf-8")
    refusal(capsys, config, *sets(*FITS), "--address", uri, code=Exit.FAILED)  # it is let in
    assert says["asked"]["Authorization"] == "Bearer of-the-file"


def test_a_head_that_has_just_come_up_is_asked_again_and_gets_the_whole_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jobs import ray_jobs

    asked: list[tuple[str, bytes]] = []

    class Client:
        def __init__(self, *_: object, **__: object) -> None: ...

        def submit_job(self, *, submission_id: str, runtime_env: dict[str, Any], **_: Any) -> str:
            asked.append((submission_id, Path(runtime_env["working_dir"]).read_bytes()))
            if len(asked) < 3:
                raise RuntimeError(f"{ray_jobs.NO_AGENT} to submit job")
            return submission_id

    monkeypatch.setattr(ray_jobs, "JobSubmissionClient", Client)
    monkeypatch.setattr(ray_jobs.time, "sleep", lambda _: None)
    jobs = ray_jobs.RayJobs("http://127.0.0.1:1")
    words: dict[str, Any] = {"entrypoint": "", "environment": {}, "metadata": {}}
    assert jobs.submit("run-1", package=b"all of it", **words) == "run-1"
    assert asked == [("run-1", b"all of it")] * 3
    monkeypatch.setattr(ray_jobs, "STARTING_S", -1.0)
    asked.clear()
    with pytest.raises(ray_jobs.ClusterGoneError, match="No available agent"):
        jobs.submit("run-2", package=b"", **words)
    assert len(asked) == 1
