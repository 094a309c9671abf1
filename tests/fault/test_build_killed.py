"""A build that is killed goes on where it was, and nobody can see from the store that it was."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from pipeline import build_actor
from pipeline.build import build_store
from pipeline.build_actor import build_store_with_actors
from pipeline.builder import Builder
from pipeline.commit import TaskRecord
from pipeline.corpus import Task
from pipeline.errors import DataError
from pipeline.progress import BuildProgress, Seen
from pipeline.settings import BuildSettings, SettingsError
from pipeline.store import Store
from pipeline.tokenizer import Ids, Tokenizer, train_tokenizer
from tests.builders import builders, content, wait_for

ROOT = Path(__file__).parents[2]
SETTINGS = BuildSettings(task_bytes=5_000, max_bad="5%")
NUM_TASKS = 150


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of many tasks with bad records here and there, a tokenizer, a whole store."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = np.random.default_rng(5)
    lines = [
        json.dumps({"text": f"{i} " * draw.integers(1, 200), "id": f"d{i % 990}"})
        if i % 100
        else "broken"
        for i in range(1_800)
    ]
    (folder / "in").mkdir()
    (folder / "in/a.jsonl").write_text("\n".join(lines))
    (folder / "byte.json").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    report = build_store(**where(folder, "whole"))
    assert report.parts >= NUM_TASKS
    assert report.rejected == {"broken JSON": 18}
    return folder


def where(corpus: Path, out: str) -> dict[str, Any]:
    return {
        "inputs": [str(corpus / "in")],
        "tokenizer": str(corpus / "byte.json"),
        "out": str(corpus / out),
        "settings": SETTINGS,
    }


def num_records(store: Path) -> int:
    return len(list(store.glob("parts/*.json")))


def script(corpus: Path, out: str, *, address: str = "", before: str = "") -> list[str]:
    """A command line that builds into `out` in a process of its own."""
    call = where(corpus, out) | {"settings": None}
    build = "from pipeline.build import build_store as build"
    if address:
        build = (
            "import ray\nfrom functools import partial\n"
            "from pipeline.build_actor import build_store_with_actors\n"
            f"ray.init({address!r}, log_to_driver=False)\n"
            "build = partial(build_store_with_actors, workers=2)"
        )
    code = (
        f"{before}\n{build}\nfrom pipeline.settings import BuildSettings\n"
        f"build(**({call!r} | {{'settings': BuildSettings("
        f"task_bytes={SETTINGS.task_bytes}, max_bad={SETTINGS.max_bad!r})}}))"
    )
    return [sys.executable, "-c", code]


def test_a_driver_killed_again_and_again_ends_with_the_store_of_one_that_was_not(
    corpus: Path,
) -> None:
    out, draw = corpus / "driver", np.random.default_rng(7)
    reached: list[int] = [0]
    halves = 0
    while reached[-1] < NUM_TASKS - 40:
        child = subprocess.Popen(script(corpus, "driver"), cwd=ROOT)
        goal = reached[-1] + int(draw.integers(1, 12))
        assert wait_for(lambda: num_records(out) >= goal or child.poll() is not None)  # noqa: B023
        time.sleep(draw.random() * 0.02)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        halves += len(list(out.rglob(".longrow-*")))
        reached.append(num_records(out))
        assert not (out / "manifest.json").exists()
        with pytest.raises(DataError, match="not finished"):
            Store.open(str(out))
    assert len(reached) > 4
    assert all(later > before for before, later in itertools.pairwise(reached))
    assert halves > 0  # some kill did hit a file half written
    progress: list[BuildProgress] = []
    build_store(**where(corpus, "driver"), progress=progress.append)
    assert content(out) == content(corpus / "whole")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_actors_makes_the_same_bytes(
    corpus: Path, ray_address: str, workers: int
) -> None:
    assert ray_address
    seen: list[BuildProgress] = []
    out = f"actors-{workers}"
    report = build_store_with_actors(**where(corpus, out), workers=workers, progress=seen.append)
    assert content(corpus / out) == content(corpus / "whole")
    assert report == build_store(**where(corpus, "whole"))
    assert [p.bytes_done for p in seen] == sorted(p.bytes_done for p in seen)
    assert (seen[-1].tasks_done, seen[-1].bytes_done) == (seen[-1].tasks, seen[-1].bytes)
    assert seen[-1].documents == report.documents
    assert wait_for(lambda: not builders())


def test_actors_killed_at_random_cost_time_and_nothing_else(
    corpus: Path, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ray_address
    out, draw = corpus / "killed", np.random.default_rng(3)
    goals = iter(np.cumsum(draw.integers(5, 25, size=7)).tolist())
    killed: dict[int, int] = {}  # process -> records when it was killed
    goal = next(goals)

    def kill(progress: BuildProgress) -> None:
        nonlocal goal
        if progress.tasks_done < goal:
            return
        time.sleep(draw.random() * 0.02)
        pid = int(draw.choice(list(builders())))
        os.kill(pid, signal.SIGKILL)
        killed[pid] = num_records(out)
        goal = next(goals, NUM_TASKS * 2)

    buried: list[object] = []
    bury = build_actor._Crew.bury

    def count(crew: build_actor._Crew, actor: object) -> None:
        buried.append(actor)
        bury(crew, actor)

    monkeypatch.setattr(build_actor._Crew, "bury", count)
    monkeypatch.setattr(build_actor, "TRIES", 10)  # chance may hit one task three times
    build_store_with_actors(**where(corpus, "killed"), workers=2, progress=kill)
    assert len(killed) == 7
    assert len(set(killed.values())) == 7  # the build went on between the kills
    assert len(buried) >= 6  # the last may have had nothing more to do
    assert content(out) == content(corpus / "whole")
    assert wait_for(lambda: not builders())


def test_a_task_that_kills_every_actor_stops_the_build_and_is_named(
    corpus: Path, ray_address: str
) -> None:
    assert ray_address
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.01):
            for pid in builders():
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(DataError, match=r"a\.jsonl \(bytes 0 to 5,000\) ended its builder 3"):
            build_store_with_actors(**where(corpus, "poison"), workers=1)
    finally:
        over.set()
        killer.join()
    assert not (corpus / "poison/manifest.json").exists()


class BuilderActor:  # by this name `builders` knows it
    """A real builder whose encoder meets a text that it does not survive."""

    def __init__(self, *, settings: BuildSettings, **told: Any) -> None:
        encode_all, encode = Tokenizer.encode_all, Tokenizer.encode_utf8

        def deadly(self: Tokenizer, texts: Sequence[bytes]) -> list[Ids]:
            if any(text.startswith(b"deadly") for text in texts):
                os.kill(os.getpid(), signal.SIGKILL)
            return encode_all(self, texts)

        def endless(self: Tokenizer, data: bytes) -> Ids:
            if data.startswith(b"endless"):
                time.sleep(3_600)
            return encode(self, data)

        Tokenizer.encode_all, Tokenizer.encode_utf8 = deadly, endless
        self._builder = Builder(tokenizer=told["tokenizer"], out=told["out"], settings=settings)

    def build(self, task: Task) -> TaskRecord:
        return self._builder.build(task)

    def seen(self) -> Seen:
        return self._builder.seen()


@pytest.mark.parametrize(
    ("poison", "said", "skip"),
    [
        ("deadly ", r"b\.jsonl \(bytes 5,000 to 10,000\).* ended its builder 3 times", ""),
        (
            "endless " * 140_000,
            r"b\.jsonl, record .*\(id 'p', 1,120,000 bytes\): tokenizing .*--skip",
            "p",
        ),
    ],
)
def test_a_text_that_ends_or_hangs_its_encoder_is_named_and_costs_no_other(
    corpus: Path,
    ray_address: str,
    monkeypatch: pytest.MonkeyPatch,
    poison: str,
    said: str,
    skip: str,
) -> None:
    assert ray_address
    folder = corpus / poison[:6]
    (folder / "in").mkdir(parents=True)
    lines = [json.dumps({"text": f"{i} " * 80, "id": f"d{i}"}) for i in range(60)]
    lines[30] = json.dumps({"text": poison, "id": "p"})
    (folder / "in/b.jsonl").write_text("\n".join(lines))
    build = partial(
        build_store_with_actors,
        [str(folder / "in")],
        tokenizer=str(corpus / "byte.json"),
        out=str(folder / "store"),
        workers=2,
    )
    settings = replace(SETTINGS, document_timeout_s=0.5)
    with monkeypatch.context() as poisoned:
        poisoned.setattr(build_actor, "BuilderActor", ray.remote(BuilderActor))
        with pytest.raises(DataError, match=said):
            build(settings=settings)
        assert num_records(folder / "store") >= 1  # what came before it is done
        assert not (folder / "store/manifest.json").exists()
        assert wait_for(lambda: not builders())
        if skip:  # the way out that the sentence names, where the encoder is still as it was
            report = build(settings=replace(settings, skip=(skip,)))
            assert (report.documents, report.rejected) == (59, {"skipped": 1})
    assert build(settings=SETTINGS).documents == 60
    assert wait_for(lambda: not builders())


def test_a_driver_of_actors_that_is_killed_leaves_a_build_that_goes_on(
    corpus: Path, ray_address: str
) -> None:
    out = corpus / "ray-driver"
    child = subprocess.Popen(script(corpus, "ray-driver", address=ray_address), cwd=ROOT)
    assert wait_for(lambda: num_records(out) >= 5 or child.poll() is not None)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert wait_for(lambda: not builders()), "actors outlived their driver"
    assert 5 <= num_records(out) < NUM_TASKS
    build_store_with_actors(**where(corpus, "ray-driver"), workers=2)
    assert content(out) == content(corpus / "whole")


def test_an_error_in_an_actor_arrives_as_it_was(corpus: Path, ray_address: str) -> None:
    assert ray_address
    (corpus / "file").write_text("in the way")
    with pytest.raises((NotADirectoryError, FileExistsError)) as caught:
        build_store_with_actors(**where(corpus, "file/below"), workers=2)
    assert caught.type in (NotADirectoryError, FileExistsError)  # no class that Ray made of it
    assert "Traceback" not in str(caught.value)
    assert wait_for(lambda: not builders())


def test_a_build_by_nobody_is_refused(corpus: Path) -> None:
    with pytest.raises(SettingsError, match="workers = 0"):
        build_store_with_actors(**where(corpus, "nobody"), workers=0)


def test_a_full_disk_stops_the_build_and_more_room_finishes_it(corpus: Path) -> None:
    limit = max(path.stat().st_size for path in (corpus / "whole").glob("parts/*.arrow")) - 1
    before = (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    )
    done = subprocess.run(
        script(corpus, "full", before=before), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "OSError" in done.stderr
    out = corpus / "full"
    assert 0 < num_records(out) < NUM_TASKS
    assert not (out / "manifest.json").exists()
    assert not list(out.rglob(".longrow-*"))
    build_store(**where(corpus, "full"))
    assert content(out) == content(corpus / "whole")
