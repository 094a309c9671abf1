"""Real documents in seven forms, built by actors that are killed: one store, whatever happens."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import build_actor
from pipeline.build import build_store
from pipeline.build_actor import build_store_with_actors
from pipeline.progress import BuildProgress
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer
from tests.builders import builders, content, wait_for

ROOT = Path(__file__).parents[2]
HERE = Path(os.environ.get("LONGROW_CORPORA", ROOT.parent / "shared" / "corpora"))


@pytest.mark.skipif(not HERE.is_dir(), reason=f"no corpora at {HERE}; LONGROW_CORPORA names them")
def test_one_two_and_three_actors_killed_at_random_write_one_store(
    tmp_path: Path, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ray_address
    monkeypatch.setattr(build_actor, "TRIES", 10)  # chance may hit one task three times
    (tmp_path / "byte").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    call: dict[str, Any] = {
        "inputs": [str(HERE)],
        "tokenizer": str(tmp_path / "byte"),
        "settings": BuildSettings(task_bytes=100_000),
    }
    whole = build_store(**call, out=str(tmp_path / "whole"))
    assert (whole.documents, whole.rejected, whole.empty) == (1_242, {}, 0)
    draw = np.random.default_rng(11)
    for workers in (1, 2, 3):
        done: list[int] = []  # tasks, when an actor was killed

        def kill(progress: BuildProgress, done: list[int] = done) -> None:
            if len(done) < 4 and progress.tasks_done >= (done[-1] if done else 0) + 5:
                os.kill(int(draw.choice(list(builders()))), signal.SIGKILL)
                done.append(progress.tasks_done)

        out = tmp_path / f"by-{workers}"
        report = build_store_with_actors(**call, out=str(out), workers=workers, progress=kill)
        assert report == whole
        assert len(done) == 4
        assert done == sorted(set(done))  # the build went on between the kills
        assert content(out) == content(tmp_path / "whole")
    assert Store.open(str(tmp_path / "by-3")).verify() == []
    assert wait_for(lambda: not builders())
