"""Which checkpoints stay, what a full disk costs, and when a run has got no better."""

import errno
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from model.memory import Memory
from tests.command import code_of
from trainer import checkpoint, saver, snapshot
from trainer.checkpoint import checkpoint_name, checkpoints, faults
from trainer.counters import Counters, count_evaluation
from trainer.errors import DivergedError
from trainer.retention import PINNED, Candidate, superfluous
from trainer.run_folder import Attempt, RunFolder
from trainer.saver import Saver
from trainer.settings import CheckpointSettings
from trainer.snapshot import Snapshot, take_snapshot

candidates_of_a_run = st.lists(
    st.tuples(st.integers(1, 4), st.booleans(), st.none() | st.integers(0, 5)), max_size=12
)
keeps = st.builds(
    CheckpointSettings,
    keep_last=st.integers(2, 4),
    keep_every=st.integers(0, 5),
    keep_best=st.integers(0, 3),
)


def taken(step: int) -> Snapshot:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    memory = Memory(states=torch.zeros(1, 2, 3, 4), usable=torch.zeros(2, dtype=torch.int64))
    return take_snapshot(
        model, optimizer, memory, step=step, rank=0, rows=(0, 2), state=lambda: {"step": step}
    )


def saver_in(run: Path, notes: list[str] | None = None, **settings: int) -> Saver:
    folder = RunFolder(run)
    folder.create()
    folder.begin(
        Attempt(number=1, launch="", start_step=0, world_size=1, threads=1, resumed_from="")
    )
    return Saver(
        folder,
        attempt=1,
        rank=0,
        world_size=1,
        settings=CheckpointSettings(**settings),
        value_of=lambda step: abs(step - 3),
        beat=lambda: None,
        note=(notes if notes is not None else []).append,
    )


@given(drawn=candidates_of_a_run, keep=keeps)
def test_what_a_rule_keeps_stays_and_what_none_keeps_goes(
    drawn: list[tuple[int, bool, int | None]], keep: CheckpointSettings
) -> None:
    step, found = 0, []
    for gap, pinned, value in drawn:
        step += gap
        found.append(
            Candidate(path=Path(checkpoint_name(step, 1)), step=step, pinned=pinned, value=value)
        )
    gone = set(superfluous(found, keep))
    for place, one in enumerate(found):
        better = [
            other
            for other in found
            if other.value is not None
            and one.value is not None
            and (other.value, other.step) < (one.value, one.step)
        ]
        kept = (
            place >= len(found) - keep.keep_last
            or one.pinned
            or (keep.keep_every > 0 and one.step % keep.keep_every == 0)
            or (one.value is not None and len(better) < keep.keep_best)
        )
        assert (one.path in gone) != kept


def test_a_run_keeps_the_newest_the_best_the_pinned_and_every_nth(tmp_path: Path) -> None:
    writer = saver_in(tmp_path, keep_last=2, keep_every=5, keep_best=1)
    for step in range(1, 9):
        writer.start(taken(step))
        writer.wait()
        if step == 2:
            (tmp_path / "checkpoints" / checkpoint_name(2, 1) / PINNED).touch()
    writer.close()
    kept = [checkpoint.step_of(path) for path in checkpoints(tmp_path / "checkpoints")]
    assert kept == [2, 3, 5, 7, 8]  # pinned, best, every fifth, the last two
    assert [faults(path) for path in checkpoints(tmp_path / "checkpoints")] == [[]] * 5


def test_nothing_is_dropped_while_the_newer_one_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = saver_in(tmp_path, keep_last=2, retries=0)
    for step in (1, 2):
        writer.start(taken(step))
        writer.wait()

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saver, "commit", refuse)
    writer.start(taken(3))
    with pytest.raises(OSError, match="No space left"):
        writer.wait()
    assert [checkpoint.step_of(path) for path in checkpoints(tmp_path / "checkpoints")] == [1, 2]


def test_a_save_that_fails_is_tried_again_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    room = iter([1, 1, 10**9])
    monkeypatch.setattr(
        snapshot.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": next(room)})
    )
    notes: list[str] = []
    writer = saver_in(tmp_path, notes, retries=2)
    monkeypatch.setattr(writer._closed, "wait", waits.append)
    writer.start(taken(4))
    writer.wait()
    assert list(writer.committed) == [4]
    assert waits == [1.0, 2.0]
    assert len(notes) == 2
    assert "1 bytes are free, the next checkpoint takes" in notes[0]
    room = iter([1] * 3)
    writer.start(taken(5))
    with pytest.raises(OSError, match=r"lower checkpoint\.keep_last") as caught:
        writer.wait()
    assert caught.value.errno == errno.ENOSPC  # a sentence for a person, and no traceback
    assert [checkpoint.step_of(path) for path in checkpoints(tmp_path / "checkpoints")] == [4]


def test_a_tensor_file_that_the_disk_refuses_is_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise checkpoint.SafetensorError("IoError: File too large")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match=r"memory-0\.safetensors cannot be written"):
        snapshot.write_part(taken(1), tmp_path / "part", rank=0)


def test_pins_and_faults_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = saver_in(tmp_path)
    writer.start(taken(1))
    writer.wait()
    writer.close()
    (path,) = checkpoints(tmp_path / "checkpoints")
    assert code_of("pin", str(path)) == 0
    assert (path / PINNED).exists()
    assert code_of("verify", str(path)) == 0
    assert code_of("pin", str(path), "--unpin") == 0
    assert not (path / PINNED).exists()
    weights = path / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert code_of("verify", str(path), "--json") == 3
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "model.safetensors" in told["faults"][0]


@pytest.mark.parametrize("words", [["show"], ["verify"]])
def test_a_checkpoint_that_its_run_removes_while_it_is_looked_at_is_passed_over(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer = saver_in(tmp_path / "run")
    for step in (1, 2):
        writer.start(taken(step))
        writer.wait()
    writer.close()
    folder = RunFolder(tmp_path / "run")
    folder.write_json("config.json", {})
    first, second = checkpoints(folder.checkpoints)
    read = checkpoint._sha256

    def meanwhile(file: Path) -> str:
        if file.parent == first and file.suffix == ".safetensors":
            folder.remove_checkpoint(first)
        return read(file)

    monkeypatch.setattr(checkpoint, "_sha256", meanwhile)
    assert code_of(*words, str(folder.path), "--json") == 0
    said, _, last = capsys.readouterr().out.rstrip().rpartition("\n")
    assert json.loads(last)["checkpoints"] == [second.name]
    assert first.name not in said
    assert code_of("verify", str(first)) == 3  # by its own name it is missed


def test_a_damaged_checkpoint_is_still_told_while_its_run_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = saver_in(tmp_path / "run")
    writer.start(taken(1))
    writer.wait()
    writer.close()
    folder = RunFolder(tmp_path / "run")
    folder.write_json("config.json", {})
    (path,) = checkpoints(folder.checkpoints)
    (path / "model.safetensors").unlink()
    assert code_of("verify", str(folder.path)) == 3
    (path / "manifest.json").unlink()
    assert code_of("verify", str(folder.path)) == 3
    assert code_of("show", str(folder.path)) == 0
    said = capsys.readouterr().out
    assert "model.safetensors is missing" in said
    assert said.count("manifest.json cannot be read") == 2


@given(st.lists(st.integers(0, 4) | st.just(math.nan), min_size=1, max_size=8))
def test_the_best_is_the_first_of_the_lowest_and_the_run_is_stale_since_then(
    found: list[float],
) -> None:
    counters = Counters()
    for step, value in enumerate(found, start=1):
        for _ in range(2):  # met again at a resume, it counts once
            counters = count_evaluation(counters, step=step, metric="eval/loss", value=value)
    numbers = [value for value in found if not math.isnan(value)]
    best = found.index(min(numbers)) + 1 if numbers else 0
    assert (counters.best_step, counters.stale) == (best, len(found) - best)
    assert counters.best == (min(numbers) if numbers else None)


def test_another_metric_begins_anew() -> None:
    before = count_evaluation(Counters(stale=4), step=3, metric="eval/loss", value=1.0)
    after = count_evaluation(before, step=3, metric="eval/perplexity", value=9.0)
    assert (after.best, after.best_step, after.stale) == (9.0, 3, 0)


def test_weights_and_moments_that_are_not_finite_are_never_committed(tmp_path: Path) -> None:
    writer = saver_in(tmp_path)
    writer.start(taken(1))
    for file in ("model.safetensors", "optimizer.safetensors"):
        bad = taken(2)
        next(iter(bad.files[file].values())).view(-1)[0] = math.inf
        writer.start(bad)
        with pytest.raises(DivergedError, match=f"in {file}.*last good.*step_00000001-a0001"):
            writer.wait()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_00000001-a0001"]


def test_an_old_checkpoint_that_cannot_be_removed_costs_no_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves: list[str] = []
    real = snapshot.write_part

    def count(one: Snapshot, folder: Path, *, rank: int) -> None:
        saves.append(folder.name)
        real(one, folder, rank=rank)

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(saver, "write_part", count)
    monkeypatch.setattr(saver, "drop_old", refuse)
    notes: list[str] = []
    writer = saver_in(tmp_path, notes)
    writer.start(taken(1))
    writer.wait()
    assert saves == ["step_00000001-a0001.part"]
    assert list(writer.committed) == [1]
    assert "could not be removed" in notes[0]


def test_a_save_that_is_refused_when_all_is_done_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks have handed in their part already: rank 0 would wait for them in vain."""
    real = saver.commit

    def late(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(saver, "commit", late)
    writer = saver_in(tmp_path, retries=1)
    monkeypatch.setattr(writer._closed, "wait", lambda _s: False)
    writer.start(taken(1))
    writer.wait()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_00000001-a0001"]


def test_a_rank_that_comes_late_costs_a_save_another_try_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "DEADLINE_S", 0.1)
    notes: list[str] = []
    writer = saver_in(tmp_path, notes, retries=1)
    writer._world_size = 2
    first = taken(1)
    memory = first.files["memory-0.safetensors"]
    other = replace(first, files={"memory-1.safetensors": memory}, state=None)
    part = tmp_path / "checkpoints/step_00000001-a0001.part"

    def come(_delay_s: float) -> bool:
        snapshot.write_part(other, part, rank=1)
        return False

    monkeypatch.setattr(writer._closed, "wait", come)
    writer.start(first)
    writer.wait()
    (note,) = notes
    assert "lacks rank-1.json" in note
    assert "cluster.hang_timeout_s" in note
    (whole,) = checkpoints(tmp_path / "checkpoints")
    assert faults(whole) == []
    assert (whole / "memory-1.safetensors").is_file()


def test_the_settings_refuse_what_means_nothing() -> None:
    for name in ("keep_every", "keep_best", "retries"):
        with pytest.raises(ValueError, match=f"checkpoint.{name} = -1"):
            replace(CheckpointSettings(), **{name: -1})
