"""A checkpoint is whole or it is none, and every rank finds its rows in it."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from model.memory import Memory
from pipeline.layout import rows_of_rank
from trainer.checkpoint import (
    CheckpointError,
    checkpoint_name,
    checkpoints,
    commit,
    faults,
    load_memory,
    load_optimizer,
    load_weights,
    newest_whole,
    read_state,
    take_snapshot,
    write_part,
)

ROWS, LAYERS, LENGTH, WIDTH = 6, 2, 3, 4
CPU = torch.device("cpu")


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


def save(folder: Path, *, step: int = 5, attempt: int = 1, world_size: int = 2) -> Path:
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
            state={"step": step} if rank == 0 else None,
        )
        write_part(snapshot, part, rank=rank)
    commit(part, target, world_size=world_size, deadline_s=1)
    return target


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
    found, passed = newest_whole(tmp_path)
    assert found == old
    assert len(passed) == 1
    assert "model.safetensors" in passed[0]
    assert new.exists()


def test_of_one_step_the_later_attempt_is_newer(tmp_path: Path) -> None:
    save(tmp_path, step=5, attempt=2)
    later = save(tmp_path, step=5, attempt=11)
    assert newest_whole(tmp_path)[0] == later


def test_an_unfinished_save_is_no_checkpoint(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer(1)
    snapshot = take_snapshot(
        model, optimizer, whole_memory(), step=7, rank=0, rows=(0, ROWS), state={"step": 7}
    )
    part = tmp_path / "step_00000007-a0001.part"
    write_part(snapshot, part, rank=0)
    with pytest.raises(CheckpointError, match=r"lacks rank-1\.json"):
        commit(part, tmp_path / "step_00000007-a0001", world_size=2, deadline_s=0.1)
    assert checkpoints(tmp_path) == []
    assert newest_whole(tmp_path) == (None, [])


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
