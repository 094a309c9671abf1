"""Workers that share an evaluation find what one process finds, and fail as one would."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command import code_of
from tests.ray_here import ray_session
from tests.tiny_runs import tiny_weights

pytestmark = pytest.mark.usefixtures("_ray")


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    yield from ray_session(num_cpus=3)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, tiny_store: Path) -> Path:
    box = tmp_path_factory.mktemp("box")
    tiny_weights(tiny_store, box / "weights")
    return box


@pytest.fixture(autouse=True)
def _this_ray(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command work on the Ray of this file, and not start one for each test."""
    from contextlib import nullcontext

    import jobs.cluster
    import jobs.crew

    monkeypatch.chdir(box)
    monkeypatch.setattr(jobs.cluster, "local_ray", lambda **_: nullcontext())
    monkeypatch.setattr(jobs.cluster, "cores", lambda: 3)
    monkeypatch.setattr(jobs.crew, "raise_on_sigterm", lambda: None)


def evaluated(
    capsys: pytest.CaptureFixture[str], store: Path, *words: str, workers: int
) -> dict[str, Any]:
    capsys.readouterr()
    how = ("--store", str(store), "--rows", "7", "--workers", str(workers), "--json")
    assert code_of("evaluate", "weights", *how, *words) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_two_workers_and_three_find_what_one_process_finds(
    capsys: pytest.CaptureFixture[str], tiny_store: Path
) -> None:
    words = ("--memory", "0,5", "--segment", "9", "--clamp", "6")
    one, *several = (
        evaluated(capsys, tiny_store, *words, workers=workers) for workers in (1, 2, 3)
    )
    for found in several:
        assert [score["memory"] for score in found["scores"]] == [0, 5]
        for score, wanted in zip(found["scores"], one["scores"], strict=True):
            floats = ("nats_by_offset", "nats", "loss", "perplexity")
            for name in floats:
                assert score[name] == pytest.approx(wanted[name], rel=1e-5)
            counts = score.keys() - {*floats, "bits_per_byte", "bits_per_char", "bits_per_word"}
            assert {"targets", "targets_by_offset", "segment", "clamp"} <= counts
            assert {name: score[name] for name in counts} == {n: wanted[n] for n in counts}


def test_several_workers_measure_the_context_that_one_process_measures(
    capsys: pytest.CaptureFixture[str], tiny_store: Path
) -> None:
    words = ("--context", "--contexts", "0,7,20", "--block", "5", "--blocks", "11")
    one, *several = (
        evaluated(capsys, tiny_store, *words, workers=workers) for workers in (1, 2, 3)
    )
    for found in several:
        assert (found["blocks"], found["targets"]) == (11, 55)
        for key in ("nats/token", "error"):
            rows = [row[key] for row in found["contexts"]]
            wanted = [row[key] for row in one["contexts"]]
            np.testing.assert_allclose(rows, wanted, rtol=1e-5, atol=1e-7)
        assert found["effective_context"][2]["length"] == one["effective_context"][2]["length"]


def test_what_a_worker_raises_is_raised_as_it_was(
    box: Path, capsys: pytest.CaptureFixture[str], tiny_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jobs.crew

    plan = jobs.crew.ScorerPlan
    monkeypatch.setattr(
        jobs.crew, "ScorerPlan", lambda **all_of: replace(plan(**all_of), store="x")
    )
    words = ("--store", str(tiny_store), "--workers", "2")
    assert code_of("evaluate", "weights", *words) == 3
    err = capsys.readouterr().err
    assert "x" in err
    assert "Ray" not in err
    assert "Traceback" not in err
    assert box.is_dir()


def test_workers_that_would_not_fit_are_refused_by_themselves(
    capsys: pytest.CaptureFixture[str], tiny_store: Path
) -> None:
    words = ("--store", str(tiny_store), "--workers", "2", "--memory", str(10**12))
    assert code_of("evaluate", "weights", *words) == 2
    assert "in each of 2 workers" in capsys.readouterr().err
