"""A run's folder on an object store is the run's folder: one writer, whole things, what counts."""

import errno
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import fsspec
import pytest

from jobs.config import read_config
from jobs.drive import folder_of
from jobs.track import uri_of
from pipeline import steady
from tests.command import code_of
from tests.unit.test_retention import taken
from tests.unit.test_run_folder import attempt
from trainer import mirror, remote_run
from trainer.checkpoint import checkpoint_name, checkpoints, newest_of, step_of
from trainer.errors import ConfigError, OvertakenError
from trainer.remote_run import RemoteRun, open_run
from trainer.retention import PINNED
from trainer.run_folder import RunFolder
from trainer.saver import Saver
from trainer.settings import CheckpointSettings
from trainer.stop_request import ask_to_stop, await_end, driving

MEMORY = fsspec.filesystem("memory")


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(steady, "FIRST_WAIT_S", 0.0)
    yield f"memory://{uuid.uuid4().hex}/run"
    MEMORY.store.clear()


def step_line(step: int, number: int, kind: str = "step") -> dict[str, object]:
    return {"kind": kind, "step": step, "attempt": number}


def writer_of(
    run: RemoteRun, number: int = 1, *, note: Callable[[str], None] = print, **settings: int
) -> Saver:
    run.create()
    run.begin(attempt(number))
    return Saver(
        run,
        attempt=number,
        rank=0,
        world_size=1,
        settings=CheckpointSettings(**settings),
        value_of=lambda _step: None,
        beat=lambda: None,
        note=note,
    )


def save(writer: Saver, *steps: int) -> None:
    for step in steps:
        writer.start(taken(step))
        writer.wait()


def test_a_number_is_taken_once_by_whichever_process(url: str) -> None:
    one, other = RemoteRun(url), RemoteRun(url)
    one.begin(attempt(1, launch="one"))
    for late in (attempt(1, launch="other"), attempt(1, launch="one")):
        with pytest.raises(ConfigError, match=f"{url} was begun by another process"):
            other.begin(late)
    assert other.attempts() == one.attempts() == [attempt(1, launch="one")]
    assert other.next_attempt() == 2


def test_where_the_store_ignores_the_wish_the_last_writer_alone_has_the_number(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = RemoteRun(url), RemoteRun(url)
    plain = MEMORY.pipe_file
    text = (json.dumps(asdict(attempt(1, launch="other"))) + "\n").encode()

    def careless(path: str, value: bytes, mode: str = "overwrite") -> None:
        del mode
        plain(path, value)
        if b"one" in value:  # the other comes at this moment
            plain(path, text)

    monkeypatch.setattr(type(MEMORY), "pipe_file", lambda _self, *args, **kw: careless(*args, **kw))
    with pytest.raises(ConfigError, match="begun by another process"):
        one.begin(attempt(1, launch="one"))
    assert other.attempts() == [attempt(1, launch="other")]


def test_an_overtaken_attempt_commits_nothing_and_its_lines_do_not_count(url: str) -> None:
    old, new = RemoteRun(url), RemoteRun(url)
    writer = writer_of(old)
    for step in range(1, 5):
        old.add_line(step_line(step, 1))
    save(writer, 2)
    old.check_lease(1)
    new.begin(attempt(2, start_step=2))
    with pytest.raises(OvertakenError, match="Attempt 1"):
        save(writer, 4)  # though it has not looked for some seconds
    new.add_line(step_line(3, 2))
    new.end_lines(2)
    old.add_line(step_line(5, 1))
    old.sync_lines()
    old.put_lines()  # as if it had not looked
    fresh = RemoteRun(url)
    assert [(line["step"], line["attempt"]) for line in fresh.lines()] == [(1, 1), (2, 1), (3, 2)]
    assert [step_of(path) for path in checkpoints(fresh.checkpoints)] == [2]


def test_lines_come_in_whole_pieces_before_the_manifest_and_no_put_a_line(url: str) -> None:
    run = RemoteRun(url)
    writer = writer_of(run)
    for step in range(1, 8):
        run.add_line(step_line(step, 1))
    run.add_line(step_line(7, 1, "evaluation") | {"eval/loss": 2.0})
    assert MEMORY.find(f"{url}/metrics") == []
    run.sync_lines()
    run.add_line(step_line(8, 1))
    save(writer, 7)
    names = [Path(name).name for name in MEMORY.find(f"{url}/metrics")]
    assert names == ["a0001-000000.jsonl"]
    assert [line["step"] for line in RemoteRun(url).lines()] == [1, 2, 3, 4, 5, 6, 7, 7]
    run.add_line(step_line(7, 1, "evaluation") | {"eval/loss": 1.0})  # made anew
    run.end_lines(1)
    told = list(RemoteRun(url).lines())
    assert [line["step"] for line in told] == [1, 2, 3, 4, 5, 6, 7, 7, 8]
    assert [line["eval/loss"] for line in told if line["kind"] == "evaluation"] == [1.0]


def test_old_lines_are_put_by_another_thread(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_run, "PIECE_LINES", 2)
    run = RemoteRun(url)
    for step in range(1, 6):
        run.add_line(step_line(step, 1))
    run._putter.shutdown(wait=True)
    assert [line["step"] for line in RemoteRun(url).lines()] == [1, 2, 3, 4]


def test_going_back_drops_evaluations_past_the_step(url: str) -> None:
    run = RemoteRun(url)
    run.create()
    for step in (4, 8):
        run.write_json(f"evaluations/step_{step:08d}.json", {})
        run.write_json(f"anchors/step_{step:08d}.json", {})
    other = RemoteRun(url)
    other.cut(4)
    names = {Path(name).name for name in MEMORY.find(url)}
    assert "step_00000004.json" in names
    assert "step_00000008.json" not in names
    run.refresh()
    assert [path.name for path in run.evaluations.iterdir()] == ["step_00000004.json"]


def test_a_manifest_is_put_last_and_removed_first(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    put, remove = mirror.Mirror.put, mirror.Mirror.remove

    def see_put(self: mirror.Mirror, name: str, source: Path | None = None) -> None:
        told.append(f"+{Path(name).name}")
        put(self, name, source)

    def see_remove(self: mirror.Mirror, name: str) -> None:
        told.append(f"-{Path(name).name}")
        remove(self, name)

    monkeypatch.setattr(mirror.Mirror, "put", see_put)
    monkeypatch.setattr(mirror.Mirror, "remove", see_remove)
    run = RemoteRun(url)
    writer = writer_of(run, keep_last=2)
    run.add_line(step_line(1, 1))
    run.sync_lines()
    told.clear()
    save(writer, 1)
    assert told[-3:] == ["+rank-0.json", "+a0001-000000.jsonl", "+manifest.json"]
    first = f"{url}/checkpoints/{checkpoint_name(1, 1)}"
    MEMORY.pipe_file(f"{first}/average.safetensors", b"")  # before the manifest by its name
    told.clear()
    save(writer, 2, 3)
    gone = [name for name in told if name.startswith("-")]
    assert gone[0] == "-manifest.json"
    assert len(gone) == 7
    assert [step_of(path) for path in checkpoints(RemoteRun(url).checkpoints)] == [2, 3]


def test_damaged_and_unfinished_checkpoints_are_named_and_passed_over(url: str) -> None:
    save(writer_of(RemoteRun(url), keep_last=4), 1, 2, 3)
    last, flipped = (f"{url}/checkpoints/{checkpoint_name(step, 1)}" for step in (3, 2))
    MEMORY.rm_file(f"{last}/manifest.json")
    data = bytearray(MEMORY.cat_file(f"{flipped}/model.safetensors"))
    data[-1] ^= 1
    MEMORY.pipe_file(f"{flipped}/model.safetensors", bytes(data))
    run = RemoteRun(url)
    newest, passed = newest_of(run, run.attempts())
    assert newest is not None
    assert step_of(newest) == 1
    assert passed == [
        f"{flipped}/model.safetensors does not have the sha256 of its manifest",
        f"{last} has no manifest.json: its writing was cut short, or the manifest was lost",
    ]
    quick, _ = newest_of(
        RemoteRun(url), RemoteRun(url).attempts(), tensors=False
    )  # sizes hold, and no tensor is fetched
    assert quick is not None
    assert step_of(quick) == 2
    assert not list(quick.glob("*.safetensors"))
    later = RemoteRun(url)
    save(writer_of(later, 2, keep_last=4), 5)
    assert MEMORY.find(last) == []  # what an earlier attempt began goes with the next commit
    assert MEMORY.find(flipped)


def test_a_put_that_fails_is_tried_again_and_told(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RemoteRun(url)
    notes: list[str] = []
    writer = writer_of(run, retries=1, note=notes.append)
    plain, left = type(MEMORY).put_file, [steady.TRIES - 1]

    def refuse(self: object, source: str, name: str) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "the store is away")
        plain(self, source, name)

    monkeypatch.setattr(type(MEMORY), "put_file", refuse)
    monkeypatch.setattr(writer._closed, "wait", lambda _s: False)
    save(writer, 1)  # all refusals of one file
    assert not notes
    left[0] = steady.TRIES
    save(writer, 2)
    (note,) = notes
    assert "The checkpoint of step 2 could not be written" in note
    assert f"cannot be reached: {steady.TRIES} tries failed" in note
    left[0] = 2 * steady.TRIES
    with pytest.raises(OSError, match="the store is away"):
        save(writer, 3)
    assert [step_of(path) for path in checkpoints(RemoteRun(url).checkpoints)] == [1, 2]


def test_a_store_that_is_away_when_a_save_begins_costs_a_try_and_not_the_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    writer = writer_of(RemoteRun(url), retries=1, note=notes.append)
    refused = pytest.MonkeyPatch()

    def away(*_args: object, **_options: object) -> None:
        raise OSError(errno.EIO, "the store is away")

    for name in ("find", "put_file", "cat_file", "exists"):
        refused.setattr(type(MEMORY), name, away)
    monkeypatch.setattr(writer._closed, "wait", lambda _s: refused.undo())
    save(writer, 1)
    (note,) = notes
    assert "The checkpoint of step 1 could not be written" in note
    assert [step_of(path) for path in checkpoints(RemoteRun(url).checkpoints)] == [1]


def test_ranks_on_several_machines_commit_one_checkpoint(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = writer_of(RemoteRun(url))
    second = RemoteRun(url)
    other = Saver(
        second,
        attempt=1,
        rank=1,
        world_size=2,
        settings=CheckpointSettings(),
        value_of=lambda _step: None,
        beat=lambda: None,
        note=print,
    )
    first._world_size = 2
    monkeypatch.setattr("trainer.saver.DEADLINE_S", 20.0)
    snapshot = taken(4)
    name = "memory-1.safetensors"
    of_other = replace(snapshot, files={name: snapshot.files["memory-0.safetensors"]}, state=None)
    first.start(snapshot)
    other.start(of_other)
    first.wait()
    other.wait()
    newest, passed = newest_of(RemoteRun(url), RemoteRun(url).attempts())
    assert passed == []
    assert newest is not None
    assert (newest / name).is_file()
    assert not list(second.checkpoints.glob("*.part"))


def test_somebody_else_stops_it_and_sees_its_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_run, "LATELY_S", 0.0)
    run, other = RemoteRun(url), RemoteRun(url)
    run.create()
    with driving(run, launch="a"):
        assert not run.existed_lately("stop.json")
        assert ask_to_stop(other)
        run.existed_lately("stop.json")  # another thread looks
        run._looker.submit(lambda: None).result()
        assert run.existed_lately("stop.json")
        assert not await_end(other, wait_s=0)
    assert await_end(other, wait_s=0)
    run.beat()
    run._looker.submit(lambda: None).result()
    assert other.last_beat()
    run.rest()
    assert other.last_beat() is None


def test_commands_take_urls(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = RemoteRun(url)
    save(writer_of(run), 1, 2)
    run.write_json("config.json", {"trainer": {"steps": 2}})
    run.write_json("summary.json", {"status": "done", "steps": 2, "of": 2})
    for step in (1, 2):
        run.add_line(step_line(step, 1) | {"train/loss": 1.0, "train/skipped_steps": 0})
    run.end_lines(1)
    newest = f"{url}/checkpoints/{checkpoint_name(2, 1)}"
    assert code_of("verify", url) == 0
    assert code_of("verify", newest) == 0
    assert f"{newest} is whole." in capsys.readouterr().out
    assert code_of("pin", newest) == 0
    assert MEMORY.exists(f"{newest}/{PINNED}")
    assert code_of("show", url) == 0
    out = capsys.readouterr().out
    assert f"{checkpoint_name(2, 1)}" in out
    assert "pinned" in out
    assert code_of("runs", "list", "--folder", url.rpartition("/")[0]) == 0
    assert "done     step 2 of 2, attempts 1" in capsys.readouterr().out
    assert code_of("stop", url) == 0
    assert code_of("pin", newest, "--unpin") == 0
    assert not MEMORY.exists(f"{newest}/{PINNED}")
    MEMORY.pipe_file(f"{newest}/optimizer.safetensors", b"short")
    assert code_of("verify", url) == 3
    assert f"{newest}/optimizer.safetensors has 5 bytes" in capsys.readouterr().out


def test_mlflow_has_no_file_on_an_object_store(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = read_config(base={"run": {"folder": url, "name": "one"}})
    folder = folder_of(config)
    assert isinstance(folder, RemoteRun)
    assert folder.place == f"{url}/one"
    with pytest.raises(ConfigError, match=r"Set tracking\.uri to an MLflow server"):
        uri_of(config, folder)
    given = f"sqlite:///{tmp_path}/mlflow.db"
    assert uri_of(read_config(base={"tracking": {"uri": given}}), folder) == given


def test_a_path_is_a_folder_of_this_machine(tmp_path: Path, url: str) -> None:
    assert type(open_run(tmp_path)) is RunFolder
    run = open_run(url)
    assert open_run(run.path) is run
    assert open_run(f"{url}/") is run
