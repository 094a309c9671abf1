"""Which checkpoints stay, what a full disk costs, and when a run has got no better."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from model.memory import Memory
from tests.command import code_of
from trainer import checkpoint, saver
from trainer.best import is_best, without_progress
from trainer.checkpoint import Snapshot, checkpoint_name, checkpoints, faults, take_snapshot
from trainer.retention import PINNED, Candidate, superfluous
from trainer.run_folder import Attempt, RunFolder
from trainer.saver import Saver
from trainer.settings import CheckpointSettings

candidates_of_a_run = st.lists(
    st.tuples(st.integers(1, 4), st.booleans(), st.none() | st.integers(0, 5)), max_size=12
)
keeps = st.builds(
    CheckpointSettings,
    keep_last=st.integers(2, 4),
    keep_every=st.integers(0, 5),
    keep_best=st.integers(0, 3),
)


def snapshot(step: int) -> Snapshot:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    memory = Memory(states=torch.zeros(1, 2, 3, 4), usable=torch.zeros(2, dtype=torch.int64))
    return take_snapshot(
        model, optimizer, memory, step=step, rank=0, rows=(0, 2), state=lambda: {"step": step}
    )


def saver_in(run: Path, **settings: int) -> Saver:
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
        writer.start(snapshot(step))
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
        writer.start(snapshot(step))
        writer.wait()

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saver, "commit", refuse)
    writer.start(snapshot(3))
    with pytest.raises(OSError, match="No space left"):
        writer.wait()
    assert [checkpoint.step_of(path) for path in checkpoints(tmp_path / "checkpoints")] == [1, 2]


def test_a_save_that_fails_is_tried_again_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    room = iter([1, 1, 10**9])
    monkeypatch.setattr(
        checkpoint.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": next(room)})
    )
    writer = saver_in(tmp_path, retries=2)
    monkeypatch.setattr(writer._closed, "wait", waits.append)
    writer.start(snapshot(4))
    writer.wait()
    assert writer.committed == 4
    assert waits == [1.0, 2.0]
    assert len(writer.notes) == 2
    assert "has 1 bytes free, the next checkpoint takes" in writer.notes[0]
    room = iter([1] * 3)
    writer.start(snapshot(5))
    with pytest.raises(OSError, match="Make room there"):
        writer.wait()
    assert [checkpoint.step_of(path) for path in checkpoints(tmp_path / "checkpoints")] == [4]


def test_a_tensor_file_that_the_disk_refuses_is_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise checkpoint.SafetensorError("IoError: File too large")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match=r"memory-0\.safetensors cannot be written"):
        checkpoint.write_part(snapshot(1), tmp_path / "part", rank=0)


def test_pins_and_faults_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = saver_in(tmp_path)
    writer.start(snapshot(1))
    writer.wait()
    writer.close()
    (path,) = checkpoints(tmp_path / "checkpoints")
    assert code_of("pin", str(path)) == 0
    assert (path / PINNED).exists()
    assert code_of("verify", str(path)) == 0
    assert code_of("pin", str(path), "--unpin") == 0
    assert not (path / PINNED).exists()
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert code_of("verify", str(path), "--json") == 3
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "model.safetensors" in told["faults"][0]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_a_run_is_best_when_it_beats_all_before_and_stale_since_then(found: list[int]) -> None:
    values = [float(value) for value in found]
    firsts = [i for i in range(len(values)) if is_best(values[: i + 1])]
    assert without_progress(values) == len(values) - 1 - firsts[-1]


def test_the_settings_refuse_what_means_nothing() -> None:
    for name in ("keep_every", "keep_best", "retries"):
        with pytest.raises(ValueError, match=f"checkpoint.{name} = -1"):
            replace(CheckpointSettings(), **{name: -1})
