"""What a worker is said to take: arithmetic as torch counts it, memory, and a trace to open."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig
from model.memory import empty_memory
from model.transformer_xl import TransformerXL
from trainer.flops import peak_of, step_flops
from trainer.profiler import AFTER, StepProfiler
from trainer.step import Objective, Rows
from trainer.usage import host_memory_bytes

SHAPES = [
    ModelConfig(vocab_size=500, layers=2, width=64, heads=2, head_width=32, inner_width=128),
    ModelConfig(
        vocab_size=90, layers=1, width=32, heads=4, head_width=16, inner_width=96, memory=0
    ),
    ModelConfig(vocab_size=200, layers=3, width=32, heads=2, embed_width=16, memory=30),
]


@pytest.mark.parametrize("config", SHAPES)
def test_the_arithmetic_of_a_step_is_what_torch_counts(config: ModelConfig) -> None:
    rows, segment = 3, 40
    model = TransformerXL(config, backend="sdpa")  # with gradients: products of whole matrices
    tokens = torch.zeros((rows, segment), dtype=torch.int64)
    offset = torch.arange(1000, 1000 + segment).expand(rows, segment)
    batch = Rows(tokens=tokens, targets=tokens, offset=offset, numbers=torch.arange(rows))
    memory = empty_memory(config, rows)
    with FlopCounterMode(display=False) as counter:
        loss, _, _ = Objective(model)(batch, memory, None)
        loss.backward()
    # torch counts the scores that no query may see as well, and the spare distance.
    unseen = 9 * segment * (segment - 1) / 2 + 3 * segment  # 9 products; 3 of K + 1 distances
    width = config.heads * config.head_width
    shared = 2 * config.width * width  # the spare distance's key
    extra = 2 * config.layers * (rows * unseen * width + shared)
    # And it does not see what is added in place: the gradient of the output's weight.
    extra -= 2 * rows * segment * config.embedding_width * config.vocab_size
    counted = counter.get_total_flops() - extra
    assert step_flops(config, rows=rows, segment=segment) == pytest.approx(counted, rel=1e-3)


def test_twice_the_rows_are_twice_the_arithmetic_but_for_what_rows_share() -> None:
    config = SHAPES[0]
    once, twice = (step_flops(config, rows=rows, segment=64) for rows in (8, 16))
    assert 1.9 * once < twice < 2 * once


def test_only_devices_whose_peak_is_known_have_one() -> None:
    assert peak_of("NVIDIA H200", precision="bf16") == 9.89e14
    assert peak_of("NVIDIA A100-SXM4-80GB", precision="bf16") == 3.12e14
    assert peak_of("NVIDIA H200", precision="fp32") == 0
    assert peak_of("Somebody's chip", precision="bf16") == 0


def test_memory_is_what_the_system_says_of_this_process() -> None:
    # Not by what an allocation adds: an allocator may hand out again what it never gave back.
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("this system tells the peak only")
    said = re.search(r"^VmRSS:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
    assert said is not None
    assert host_memory_bytes() == pytest.approx(int(said[1]) * 1024, rel=0.05)


def test_a_trace_holds_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    profiler = StepProfiler(tmp_path / "profile", attempt=2, rank=0, steps=2)
    written = []
    for _ in range(AFTER + 4):
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))
        written.append(profiler.step())
    assert written.index(True) == AFTER + 1
    assert written.count(True) == 1
    trace = json.loads((tmp_path / "profile" / "attempt-0002-rank-0.json").read_text())
    products = [event for event in trace["traceEvents"] if event.get("name") == "aten::mm"]
    assert len(products) == 2


def test_without_a_wish_there_is_no_trace_and_an_early_end_leaves_what_was_seen(
    tmp_path: Path,
) -> None:
    none = StepProfiler(tmp_path / "none", attempt=1, rank=0, steps=0)
    short = StepProfiler(tmp_path / "short", attempt=1, rank=0, steps=50)
    for _ in range(AFTER + 2):
        assert not none.step()
        assert not short.step()
    none.close()
    short.close()
    assert not (tmp_path / "none").exists()
    assert (tmp_path / "short" / "attempt-0001-rank-0.json").is_file()
