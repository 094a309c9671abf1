"""What a full disk costs: nothing while lines are refused, an attempt once a save is."""

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.files import write_whole
from tests.tiny_runs import tiny_plan
from tests.unit.test_retention import saver_in, taken
from trainer import anchors, examiner, loop, retention, run_folder, saver, snapshot
from trainer.best import value_of
from trainer.board import Board, LocalReporter, Verdict
from trainer.checkpoint import checkpoint_name, checkpoints, read_state
from trainer.group import Group
from trainer.later import Later
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder
from trainer.settings import CheckpointSettings, EvaluateSettings

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def plan(tiny_store: Path, tmp_path: Path) -> TrainPlan:
    return replace(
        tiny_plan(tiny_store, tmp_path / "run", steps=10),
        evaluate=EvaluateSettings(),
        checkpoint=CheckpointSettings(every=5, retries=0),
    )


def run(plan: TrainPlan) -> tuple[Verdict, list[str]]:
    board = Board()
    group = Group(device=torch.device("cpu"))
    verdict = train(plan, group, LocalReporter(board), lambda _rows: None)
    return verdict, board.drain().notes


def refusing(monkeypatch: pytest.MonkeyPatch, when: Callable[[dict[str, Any]], bool]) -> None:
    real = RunFolder.add_line

    def add_line(folder: RunFolder, line: dict[str, Any]) -> None:
        if when(line):
            raise FULL
        real(folder, line)

    monkeypatch.setattr(RunFolder, "add_line", add_line)


def test_lines_that_the_disk_refuses_are_written_with_a_later_one(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def when(line: dict[str, Any]) -> bool:
        tries.append(line["step"])
        return line["step"] == 2 and tries.count(2) < 3

    refusing(monkeypatch, when)
    verdict, notes = run(plan)
    assert verdict.status == "done"
    steps = [line["step"] for line in RunFolder(plan.folder).lines() if line["kind"] == "step"]
    assert steps == list(range(1, 11))
    assert sum("cannot be written" in note for note in notes) == 1


def test_no_checkpoint_is_committed_without_the_lines_before_it(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, lambda line: line["step"] == 7)
    with pytest.raises(OSError, match="No space left"):
        run(plan)
    folder = RunFolder(plan.folder)
    assert [path.name for path in checkpoints(folder.checkpoints)] == [checkpoint_name(5, 1)]
    assert [line["step"] for line in folder.lines()] == [1, 2, 3, 4, 5, 6]


def test_half_a_line_that_the_disk_took_is_taken_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create()
    folder.add_line({"kind": "step", "step": 1})
    real = Path.open

    class Half:
        def __init__(self, file: Any) -> None:
            self.file, self.writes = file, 0

        def __enter__(self) -> "Half":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            self.writes += 1
            if self.writes == 2:
                raise FULL
            return self.file.write(data[:5])

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Path, "open", lambda path, *args, **options: Half(real(path, *args, **options))
        )
        with pytest.raises(OSError, match="No space left"):
            folder.add_line({"kind": "step", "step": 2})
    folder.add_line({"kind": "step", "step": 3})
    assert [line["step"] for line in folder.lines()] == [1, 3]


def test_every_line_says_when_it_was_written(plan: TrainPlan) -> None:
    run(plan)
    times = [line["time"] for line in RunFolder(plan.folder).lines()]
    assert times == sorted(times)
    assert times[0] > 1e12  # ms since 1970


def test_each_committed_checkpoint_is_told_though_two_end_between_looks(tmp_path: Path) -> None:
    writer = saver_in(tmp_path)
    for step in (1, 2):
        writer.start(taken(step))
    writer.wait()
    assert list(writer.committed) == [1, 2]


def test_a_refused_save_is_told_while_somebody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    writer = saver_in(tmp_path, notes, retries=1)
    heard: list[int] = []
    monkeypatch.setattr(writer._closed, "wait", lambda _s: heard.append(len(notes)))
    refuse = [FULL]

    def commit(*_: object, **__: object) -> None:
        raise refuse[0]

    monkeypatch.setattr(saver, "commit", commit)
    writer.start(taken(1))
    with pytest.raises(OSError, match="No space left"):
        writer.wait()
    assert heard == [1]
    assert len(notes) == 1


def test_a_retry_is_not_refused_for_want_of_the_room_that_its_own_half_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = taken(1)
    disk = 2 * one.size_bytes + 2_000

    def disk_usage(folder: Path) -> Any:
        used = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        return type("Usage", (), {"free": disk - used})

    monkeypatch.setattr(snapshot.shutil, "disk_usage", disk_usage)
    real, tries = snapshot.write_part, list[int]()

    def write_part(given: snapshot.Snapshot, folder: Path, *, rank: int) -> None:
        tries.append(1)
        real(given, folder, rank=rank)
        if len(tries) == 1:
            (folder / "model.safetensors").write_bytes(bytes(disk - 100))
            raise FULL

    monkeypatch.setattr(saver, "write_part", write_part)
    writer = saver_in(tmp_path, retries=1)
    monkeypatch.setattr(writer._closed, "wait", lambda _s: False)
    writer.start(one)
    writer.wait()
    assert list(writer.committed) == [1]


def test_rank_0_looks_for_room_for_the_memory_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = taken(1)
    asked: list[int] = []
    monkeypatch.setattr(
        saver, "check_room", lambda _folder, *, size_bytes: asked.append(size_bytes)
    )
    monkeypatch.setattr(saver, "commit", lambda *_args, **_options: None)
    writer = saver_in(tmp_path)
    writer._world_size = 3
    writer.start(one)
    writer.wait()
    assert asked == [one.size_bytes + 2 * one.memory_bytes]
    assert 0 < one.memory_bytes < one.size_bytes


def test_a_damaged_evaluation_is_a_note_of_the_thread_that_saves(tmp_path: Path) -> None:
    notes: list[str] = []
    writer = saver_in(tmp_path, notes)
    file = tmp_path / "evaluations" / "step_00000001.json"
    file.write_text("[{")
    writer._value_of = lambda _step: value_of(file, metric="eval/loss", memory=1)
    writer.start(taken(1))
    writer.wait()
    assert list(writer.committed) == [1]
    assert "step_00000001.json is damaged" in notes[0]


def test_a_checkpoint_that_is_pinned_at_the_last_moment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = retention.superfluous

    def superfluous(*args: Any) -> list[Path]:
        found = real(*args)
        for path in found:
            (path / retention.PINNED).touch()
        return found

    monkeypatch.setattr(retention, "superfluous", superfluous)
    writer = saver_in(tmp_path, keep_last=2, keep_best=0)
    for step in (1, 2, 3):
        writer.start(taken(step))
        writer.wait()
    assert len(checkpoints(tmp_path / "checkpoints")) == 3


def test_a_pin_that_came_too_late_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.command import code_of

    writer = saver_in(tmp_path)
    writer.start(taken(1))
    writer.wait()
    (path,) = checkpoints(tmp_path / "checkpoints")
    real = Path.touch

    def touch(at: Path) -> None:
        (path / "manifest.json").unlink()
        real(at)

    monkeypatch.setattr(Path, "touch", touch)
    assert code_of("pin", str(path)) == 3


def test_a_full_disk_does_not_hide_what_a_worker_dies_of(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.launch_ray import _keep_error

    def full(*_: object, **__: object) -> None:
        raise FULL

    monkeypatch.setattr(Path, "write_text", full)
    assert "could not be kept: [Errno 28]" in _keep_error(plan, 0, "text")


def refusing_files(monkeypatch: pytest.MonkeyPatch, until: Callable[[], bool]) -> list[str]:
    """Refuse anchors and evaluations, as a full disk does, until it says so; gives what was."""
    refused: list[str] = []

    def full(path: str, data: bytes) -> None:
        if Path(path).parent.name in ("anchors", "evaluations") and not until():
            refused.append(Path(path).name)
            raise FULL
        write_whole(path, data)

    for module in (anchors, examiner, run_folder):
        monkeypatch.setattr(module, "write_whole", full)
    return refused


def small_files(folder: RunFolder) -> dict[str, bytes]:
    kinds = (folder.anchors, folder.evaluations)
    return {path.name: path.read_bytes() for kind in kinds for path in kind.glob("*.json")}


@pytest.mark.parametrize("room_again", [True, False])
def test_anchors_and_evaluations_that_the_disk_refuses_cost_no_attempt(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch, *, room_again: bool
) -> None:
    plan = replace(
        plan,
        evaluate=EvaluateSettings(every=4),
        checkpoint=CheckpointSettings(every=5, keep_best=1),
    )
    run(plan)
    whole, lines, best = small_files(RunFolder(plan.folder)), told_by(plan), best_of(plan)
    RunFolder(plan.folder).discard()
    RunFolder(plan.folder).create()

    def until() -> bool:
        return room_again and len(checkpoints(RunFolder(plan.folder).checkpoints)) > 1

    refused = refusing_files(monkeypatch, until)
    verdict, notes = run(plan)
    assert verdict.status == "done"
    assert told_by(plan) == lines  # the line of an evaluation says what it found all the same
    assert {"step_00000000.json", "step_00000004.json"} <= set(refused)
    assert best_of(plan) == best
    found = small_files(RunFolder(plan.folder))
    (note,) = (note for note in notes if "cannot be written" in note)
    assert "anchors/step_00000000.json" in note
    missing = [note for note in notes if "these are missing" in note]
    if room_again:
        assert found.keys() == whole.keys()
        assert found["step_00000004.json"] == whole["step_00000004.json"]
        assert missing == []
    else:
        assert not found
        assert all(name in missing[0] for name in whole)


def best_of(plan: TrainPlan) -> list[float]:
    """What the newest checkpoint knows of the best evaluation so far."""
    counters = read_state(checkpoints(RunFolder(plan.folder).checkpoints)[-1])["counters"]
    assert counters["best_step"] > 0
    return [counters[key] for key in ("best", "best_step", "scored", "stale")]


def told_by(plan: TrainPlan) -> list[tuple[str, int, float | None]]:
    lines = RunFolder(plan.folder).lines()
    return [
        (line["kind"], line["step"], line.get("train/loss", line.get("eval/loss")))
        for line in lines
    ]


def test_the_last_lines_are_tried_again_as_a_save_is(
    plan: TrainPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that come after the last save: an evaluation of the step that was saved."""
    monkeypatch.setattr(loop, "RETRY_S", 0.01)
    plan = replace(
        plan, evaluate=EvaluateSettings(every=5), checkpoint=CheckpointSettings(every=5, retries=3)
    )
    tries: list[int] = []

    def when(line: dict[str, Any]) -> bool:
        if line["kind"] == "evaluation" and line["step"] == 10:
            tries.append(1)
            return len(tries) < 4
        return False

    refusing(monkeypatch, when)
    verdict, notes = run(plan)
    assert verdict.status == "done"
    assert sum("It is tried again" in note for note in notes) == 2
    assert [line["step"] for line in RunFolder(plan.folder).lines()][-1] == 10


def test_a_file_that_is_refused_for_good_keeps_no_other_from_being_written() -> None:
    notes: list[str] = []
    later, refused, written = Later(notes.append), {"one", "other"}, list[str]()

    def act(name: str) -> None:
        if name in refused:
            raise FULL
        written.append(name)

    for name in ("one", "other"):
        later.write(name, partial(act, name))
    refused.remove("other")
    later.again()
    later.again()
    assert written == ["other"]
    later.close()
    assert notes[-1].startswith("The disk refused to the end, and these are missing: one. ")


@pytest.mark.parametrize("steps", [2, 50], ids=["in the run", "at its end"])
@pytest.mark.parametrize("refused", ["the folder", "the file"])
def test_a_trace_that_the_disk_refuses_costs_no_attempt(
    plan: TrainPlan, steps: int, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refused == "the folder":
        folder = RunFolder(plan.folder)
        folder.create()
        (folder.path / "profile").write_text("")
    else:  # as torch does: it prints an error, and no file is there
        monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda *_: None)
    verdict, notes = run(replace(plan, trainer=replace(plan.trainer, profile=steps)))
    assert verdict.status == "done"
    assert len([note for note in notes if "trace could not be kept" in note]) == 1
    assert not any("A trace of steps is in" in note for note in notes)
