"""A checkpoint is whole or it is none, and every rank finds its rows in it."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from model.memory import Memory
from pipeline.layout import rows_of_rank
from trainer.checkpoint import (
    STATE_KEYS,
    STATE_VERSION,
    CheckpointError,
    checkpoint_name,
    checkpoints,
    drop_unfinished,
    faults,
    load_memory,
    load_optimizer,
    load_weights,
    newest_whole,
    read_state,
    save_tensors,
)
from trainer.errors import ConfigError
from trainer.retention import drop_old
from trainer.run_folder import Attempt
from trainer.settings import CheckpointSettings
from trainer.snapshot import commit, take_snapshot, write_part

STATE = dict.fromkeys(STATE_KEYS, 0) | {"version": STATE_VERSION}
ROWS, LAYERS, LENGTH, WIDTH = 6, 2, 3, 4
CPU = torch.device("cpu")
KEEP_TWO = CheckpointSettings(keep_last=2)


def model_and_optimizer(seed: int) -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        model(torch.randn(5, WIDTH)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def whole_memory() -> Memory:
    states = torch.arange(LAYERS * ROWS * LENGTH * WIDTH, dtype=torch.float32)
    return Memory(states=states.view(LAYERS, ROWS, LENGTH, WIDTH), usable=torch.arange(ROWS))


def save(
    folder: Path, *, step: int = 5, attempt: int = 1, world_size: int = 2, average: bool = False
) -> Path:
    """A checkpoint by `world_size` ranks, each with its rows of `whole_memory`."""
    model, optimizer = model_and_optimizer(1)
    target = folder / checkpoint_name(step, attempt)
    part = folder / f"{target.name}.part"
    for rank in range(world_size):
        low, high = rows_of_rank(ROWS, rank=rank, world_size=world_size)
        snapshot = take_snapshot(
            model,
            optimizer,
            whole_memory().rows(low, high),
            step=step,
            rank=rank,
            rows=(low, high),
            state=(lambda: STATE | {"step": step}) if rank == 0 else None,
            average=list(model.parameters()) if average else (),
        )
        write_part(snapshot, part, rank=rank)
    commit(part, target, world_size=world_size, deadline_s=1)
    return target


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_weights_and_moments_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = save(tmp_path)
    assert faults(path) == []
    assert read_state(path)["step"] == 5
    model, optimizer = model_and_optimizer(1)
    other, fresh = model_and_optimizer(2)
    load_weights(path, other)
    load_optimizer(path, other, fresh)
    for wanted, found in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(wanted, found)
        assert optimizer.state[wanted].keys() == fresh.state[found].keys()
        for name, value in optimizer.state[wanted].items():
            assert torch.equal(value, fresh.state[found][name])


@pytest.mark.parametrize("written_by", [1, 2, 3])
@pytest.mark.parametrize("read_by", [1, 2, 3, 6])
def test_memory_is_found_by_global_row_whatever_ranks_wrote_it(
    tmp_path: Path, written_by: int, read_by: int
) -> None:
    path = save(tmp_path, world_size=written_by)
    whole = whole_memory()
    for rank in range(read_by):
        low, high = rows_of_rank(ROWS, rank=rank, world_size=read_by)
        found = load_memory(path, (low, high), CPU)
        assert torch.equal(found.states, whole.states[:, low:high])
        assert torch.equal(found.usable, whole.usable[low:high])


def test_rows_that_no_file_holds_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no memory of row 6"):
        load_memory(save(tmp_path), (4, 8), CPU)


def test_every_flipped_byte_and_every_cut_is_found(tmp_path: Path) -> None:
    path = save(tmp_path)
    for file in sorted(path.iterdir()):
        good = file.read_bytes()
        middle = len(good) // 2
        file.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
        flipped = faults(path)
        file.write_bytes(good[:-1])
        cut = faults(path)
        file.unlink()
        gone = faults(path)
        file.write_bytes(good)
        for found in (flipped, cut, gone):
            assert file.name in found[0], file.name
    assert faults(path) == []


def test_the_newest_whole_one_is_taken_and_damaged_ones_stay_where_they_are(
    tmp_path: Path,
) -> None:
    old = save(tmp_path, step=5)
    new = save(tmp_path, step=10)
    (new / "model.safetensors").write_bytes(b"")
    found, passed = newest_whole(tmp_path, [])
    assert found == old
    assert len(passed) == 1
    assert "model.safetensors" in passed[0]
    assert new.exists()


def test_of_one_step_the_later_attempt_is_newer(tmp_path: Path) -> None:
    save(tmp_path, step=5, attempt=2)
    later = save(tmp_path, step=5, attempt=11)
    assert newest_whole(tmp_path, [])[0] == later


def test_an_unfinished_save_is_no_checkpoint(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer(1)
    snapshot = take_snapshot(
        model, optimizer, whole_memory(), step=7, rank=0, rows=(0, ROWS), state=lambda: STATE
    )
    part = tmp_path / "step_00000007-a0001.part"
    write_part(snapshot, part, rank=0)
    with pytest.raises(TimeoutError, match=r"lacks rank-1\.json.*cluster\.hang_timeout_s"):
        commit(part, tmp_path / "step_00000007-a0001", world_size=2, deadline_s=0.1)
    assert checkpoints(tmp_path) == []
    assert newest_whole(tmp_path, []) == (None, [])


def began(number: int, start_step: int) -> Attempt:
    return Attempt(
        number=number,
        launch="a",
        start_step=start_step,
        world_size=2,
        threads=1,
        resumed_from="",
    )


def no_value(_step: int) -> None:
    """No evaluation was made."""


def test_old_ones_go_and_unfinished_ones_of_earlier_attempts(tmp_path: Path) -> None:
    kept = [save(tmp_path, step=step, attempt=2) for step in (1, 2, 3, 4)][-2:]
    (tmp_path / "step_00000009-a0001.part").mkdir()
    (tmp_path / "step_00000009-a0002.part").mkdir()
    drop_old(
        tmp_path,
        [began(1, 0), began(2, 0)],
        keep=KEEP_TWO,
        value_of=lambda _step: None,
        remove=shutil.rmtree,
    )
    drop_unfinished(tmp_path, attempt=2)
    assert checkpoints(tmp_path) == kept
    assert [path.name for path in tmp_path.glob("*.part")] == ["step_00000009-a0002.part"]


def test_a_branch_that_a_later_attempt_left_behind_is_dead_and_counts_for_nothing(
    tmp_path: Path,
) -> None:
    # Attempt 2 went back to step 5: because 10 and 15 were damaged, or came from a zombie later.
    old, *dead = [save(tmp_path, step=step, attempt=1) for step in (5, 10, 15)]
    attempts = [began(1, 0), began(2, 5)]
    assert newest_whole(tmp_path, attempts) == (old, [])
    new = [save(tmp_path, step=step, attempt=2) for step in (6, 7)]
    drop_old(tmp_path, attempts, keep=KEEP_TWO, value_of=no_value, remove=shutil.rmtree)
    assert checkpoints(tmp_path) == sorted([*dead, *new])
    assert newest_whole(tmp_path, attempts)[0] == new[-1]


def test_where_all_are_damaged_nothing_begins_anew(tmp_path: Path) -> None:
    for step in (5, 10):
        (save(tmp_path, step=step) / "state.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* is whole: .*move that folder"):
        newest_whole(tmp_path, [began(1, 0)])


def test_a_save_whose_attempt_was_overtaken_is_no_checkpoint(tmp_path: Path) -> None:
    def overtaken() -> None:
        raise ConfigError("overtaken")

    save(tmp_path)
    whole = tmp_path / "step_00000005-a0001"
    part = whole.rename(tmp_path / "step_00000006-a0001.part")
    (part / "manifest.json").unlink()
    target = tmp_path / "step_00000006-a0001"
    with pytest.raises(ConfigError, match="overtaken"):
        commit(part, target, world_size=2, deadline_s=1, may_go_on=overtaken)
    assert checkpoints(tmp_path) == []


def test_a_state_of_another_version_is_a_sentence(tmp_path: Path) -> None:
    path = save(tmp_path)
    for wrong in (STATE | {"version": 2}, {"version": STATE_VERSION, "step": 1}, {}):
        (path / "state.json").write_text(json.dumps(wrong))
        with pytest.raises(CheckpointError, match=r"state\.json"):
            read_state(path)


def test_weights_of_another_model_are_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path)
    with pytest.raises(CheckpointError, match=r"'0\.weight'.*\[2, 4\]"):
        load_weights(path, nn.Sequential(nn.Linear(WIDTH, 2)))
    with pytest.raises(CheckpointError, match=r"the model lacks: 1\.bias"):
        load_weights(path, nn.Sequential(nn.Linear(WIDTH, WIDTH)))


def test_a_manifest_of_another_version_is_a_fault(tmp_path: Path) -> None:
    path = save(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"version": 99}))
    assert "version 99" in faults(path)[0]


def test_an_average_belongs_to_a_checkpoint_that_has_one_and_to_no_other(tmp_path: Path) -> None:
    path = save(tmp_path, average=True)
    assert faults(path) == []
    file = path / "average.safetensors"
    kept = file.read_bytes()
    file.unlink()
    assert "average.safetensors is missing" in faults(path)[0]
    file.write_bytes(flipped(kept))
    assert "average.safetensors does not have the sha256" in faults(path)[0]
    other = save(tmp_path, step=6)
    (other / "average.safetensors").write_bytes(kept)
    assert "does not list the files of a checkpoint: average.safetensors" in faults(other)[0]


def test_a_quick_look_reads_no_tensors_and_still_sees_what_is_cut_or_gone(tmp_path: Path) -> None:
    path = save(tmp_path)
    weights, state = path / "model.safetensors", path / "state.json"
    weights.write_bytes(flipped(weights.read_bytes()))
    assert faults(path, tensors=False) == []
    assert len(faults(path)) == 1
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "model.safetensors has" in faults(path, tensors=False)[0]
    state.write_bytes(state.read_bytes()[:-1] + b" ")
    assert "state.json does not have" in faults(path, tensors=False)[1]


@pytest.mark.parametrize("name", ["../elsewhere", "more.bin", "memory-7.safetensors"])
def test_a_manifest_that_lists_other_files_is_a_fault(tmp_path: Path, name: str) -> None:
    path = save(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"size": 0, "sha256": ""}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert f"does not list the files of a checkpoint: {name}" in faults(path)[0]
    for world_size in (0, -1, 10**12, 2.0, "2", None):
        wrong = manifest | {"world_size": world_size}
        (path / "manifest.json").write_text(json.dumps(wrong))
        assert "manifest.json is damaged" in faults(path)[0]


@pytest.mark.parametrize(
    "told",
    [
        "[" * 100_000,
        "[1, 2]",
        '{"version": 1, "files": "all", "world_size": 1}',
        '{"version": 1, "files": {}, "world_size": 1000000000000}',
        '{"version": "1", "files": {}, "world_size": 1}',
    ],
)
def test_whatever_stands_in_a_manifest_is_a_fault_and_no_more(tmp_path: Path, told: str) -> None:
    (save(tmp_path) / "manifest.json").write_text(told)
    good = save(tmp_path, step=4)
    newest, passed = newest_whole(tmp_path, [began(1, 0)])
    assert newest == good
    assert len(passed) == 1
    assert "manifest.json" in passed[0]


@pytest.mark.parametrize("size", ["big", None, [], 10**30])
def test_a_size_that_is_none_is_a_fault(tmp_path: Path, size: object) -> None:
    path = save(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["model.safetensors"]["size"] = size
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert "model.safetensors" in faults(path)[0]


def test_a_checkpoint_of_a_newer_version_is_not_passed_over(tmp_path: Path) -> None:
    save(tmp_path, step=4)
    path = save(tmp_path, step=5)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with pytest.raises(CheckpointError, match=r"a0001.*newer longrow.*version 2.*that wrote it"):
        newest_whole(tmp_path, [began(1, 0)])


def test_a_checkpoint_that_may_not_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, step=4)
    path = save(tmp_path, step=5)
    real = Path.open

    def refused(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.parent == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(CheckpointError, match=r"may not be read.*chown"):
        newest_whole(tmp_path, [began(1, 0)])


def test_a_file_that_the_disk_does_not_give_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = save(tmp_path, step=4)
    path = save(tmp_path, step=5)
    real = Path.open

    def refused(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == path / "optimizer.safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)
    newest, passed = newest_whole(tmp_path, [began(1, 0)])
    assert newest == good
    assert "optimizer.safetensors cannot be read: Input/output error" in passed[0]


def test_a_disk_that_refuses_tensors_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: Any, **_kwargs: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space (os error 28)")

    monkeypatch.setattr("trainer.checkpoint.save_file", full)
    with pytest.raises(OSError, match=r"model\.safetensors") as caught:
        save_tensors({}, tmp_path / "model.safetensors", rows=(0, 1))
    assert caught.value.errno == errno.ENOSPC


def test_a_colleague_may_read_tensors_where_he_may_read_the_rest(tmp_path: Path) -> None:
    path = save(tmp_path)
    modes = {oct(file.stat().st_mode & 0o777) for file in path.iterdir()}
    assert len(modes) == 1
