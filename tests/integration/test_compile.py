"""A compiled model is the model: equal numbers and gradients, one graph for all segments."""

import shutil
from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from model.noise import Noise
from tests.models import Stream, random_memory, same, small_model

COMPILERS = ("g++", "c++", "clang++")


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def compare(backend: str, *, noisy: bool, rows: int, segment: int, memory: int, seed: int) -> None:
    """Read four segments, resets among them, both ways; compare what each segment gives."""
    rate = 0.2 if noisy else 0.0
    model = small_model(
        pre_norm=noisy, cutoffs=(5, 12), div_val=2, dropout=rate, attention_dropout=rate
    )
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    draw = torch.Generator().manual_seed(seed)
    one = two = random_memory(model, rows, memory)
    offset = torch.full((rows, 1), 50)
    for step in range(4):
        lines = []
        for row in range(rows):
            at, line = int(offset[row]), []
            for _ in range(segment):
                at = 0 if torch.rand((), generator=draw) < 0.2 else at + 1
                line.append(at)
            lines.append(line)
        offset = torch.tensor(lines)
        tokens = torch.randint(23, offset.shape, generator=draw)
        part = Stream(tokens=tokens, offset=offset)
        offset = offset[:, -1:]
        noise = Noise(seed=3, step=torch.tensor(step), rows=torch.arange(rows)) if noisy else None
        found = []
        for each, remembered in ((model, one), (compiled, two)):
            hidden, after = each(part.tokens, part.offset, remembered, noise)
            loss = model.nll(hidden, part.tokens).sum()
            grads = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
            found.append((hidden, after, grads))
        (hidden, one, grads), (hidden_2, two, grads_2) = found
        same(hidden_2, hidden)
        same(two.states, one.states)
        assert torch.equal(two.usable, one.usable)
        for grad, wanted in zip(grads_2, grads, strict=True):
            same(grad, wanted, close=1e-10)
        assert counters["stats"]["unique_graphs"] == 1, f"compiled again at segment {step}"


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 5, 4), (2, 4, 9)])
def test_one_graph_serves_all_segments_of_a_shape(
    shape: tuple[int, int, int], *, noisy: bool
) -> None:
    rows, segment, memory = shape
    compare("aot_eager", noisy=noisy, rows=rows, segment=segment, memory=memory, seed=sum(shape))


@pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="no C++ compiler for torch.compile here"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_gives_the_numbers_of_the_model() -> None:
    compare("inductor", noisy=False, rows=2, segment=4, memory=6, seed=1)
