"""Six of the nine points: what the model keeps, sees and forgets. See check.py."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from model.layer import Layer
from model.memory import Memory, empty_memory
from model.reach import reach_of
from model.transformer_xl import TransformerXL

if TYPE_CHECKING:
    from trainer.check import Case

CLOSE = 1e-9  # of float64
DEEP = 1_000_000  # an offset with more past than any memory holds


class Wrong(Exception):  # noqa: N818 - an answer, not an accident
    """A point is wrong; says how."""


def require(holds: bool, wrong: str) -> None:
    """Raise Wrong unless `holds`."""
    if not holds:
        raise Wrong(wrong)


def memory_shape(case: "Case") -> None:
    """From the first step on each layer keeps M states of its own input, for every row."""
    model, config = case.model, case.model.config
    memory = fresh(model, case.rows)
    wanted = [config.layers, case.rows, config.memory, config.width]
    for step in range(2):
        inputs, memory = _read(case, step, memory)
        found = list(memory.states.shape)
        require(
            found == wanted and list(memory.usable.shape) == [case.rows],
            f"after step {step + 1} the states are {found}, wanted {wanted}",
        )
        last = min(config.memory, inputs[0].shape[1])
        for number, level in enumerate(inputs):
            require(
                near(memory.states[number][:, config.memory - last :], last_of(level, last)),
                f"after step {step + 1} layer {number} does not keep its own input",
            )


def detached(case: "Case") -> None:
    """What is remembered is part of no graph, and no gradient reaches it."""
    model = case.model
    tokens, offset, _ = case.tensors(0)
    _, memory = model(tokens, offset, fresh(model, case.rows))
    require(
        not memory.states.requires_grad,
        "the memory of the first step is part of its graph: it would grow with every step",
    )
    leaf = memory.states.clone().requires_grad_()
    tokens, offset, targets = case.tensors(1)
    hidden, _ = model(tokens, offset, Memory(states=leaf, usable=memory.usable))
    model.nll(hidden, targets).sum().backward()
    model.zero_grad(set_to_none=True)
    require(leaf.grad is None or not leaf.grad.any(), "a gradient reaches the memory")


def trimmed(case: "Case") -> None:
    """The memory is the last M inputs of each layer, in order, however long was read."""
    config = case.model.config
    memory = fresh(case.model, case.rows)
    past: list[Tensor] = []
    for step in range(len(case.batches)):
        inputs, memory = _read(case, step, memory)
        if past:
            inputs = [torch.cat(pair, dim=1) for pair in zip(past, inputs, strict=True)]
        past = inputs
        read = (step + 1) * case.layout.segment
        usable = min(config.memory, read)
        require(
            memory.length <= config.memory and memory.usable.tolist() == [usable] * case.rows,
            f"after {read} tokens {memory.length} states are kept, {memory.usable.tolist()} "
            f"usable; wanted {config.memory} and {usable}",
        )
        for number, level in enumerate(past):
            require(
                near(last_of(memory.states[number], usable), last_of(level, usable)),
                f"after {read} tokens layer {number} does not hold its last {usable} inputs in "
                "their order",
            )


def rectangular_mask(case: "Case") -> None:
    """Every query sees all usable memory and the segment up to itself, and nothing else.

    One remembered state of the last layer is changed: the queries whose output changes are those
    that see it. Then one token is: it must change its own output and none before it.
    """
    model = case.model
    memory = _full(case)
    M, window = memory.length, reach_of(model.config, memory.length).window
    tokens, _, _ = case.tensors(-1)
    L = tokens.shape[1]
    offset = DEEP + torch.arange(L, device=tokens.device).expand_as(tokens)
    place = torch.arange(L, device=tokens.device)
    for usable in {M, M // 2}:
        had = Memory(states=memory.states, usable=torch.full_like(memory.usable, usable))
        before = _hidden(model, tokens, offset, had)
        for j in {0, M // 2, M - usable, M - 1} if M else ():
            states = memory.states.clone()
            states[-1, :, j] = states[-1, :, j] * -2 + 1
            after = _hidden(model, tokens, offset, Memory(states=states, usable=had.usable))
            sees = (after != before).any(dim=2)
            distance = M + place - j
            wanted = (distance <= usable + place) & ((distance < window) | (window == 0))
            require(
                bool((sees == wanted).all()),
                f"with {usable} of {M} states usable, state {j} is seen by queries "
                f"{_places(sees)}, wanted {_places(wanted.expand_as(sees))}",
            )
    before = _hidden(model, tokens, offset, memory)
    changed = tokens.clone()
    changed[:, L // 2] = (changed[:, L // 2] + 1) % model.config.vocab_size
    sees = (_hidden(model, changed, offset, memory) != before).any(dim=2)
    require(not bool(sees[:, : L // 2].any()), "a query sees a token that comes after it")
    require(bool(sees[:, L // 2].all()), "a query does not see its own token")


@torch.no_grad()
def distances_aligned(case: "Case") -> None:
    """Each layer's output is that of the definition, every pair's distance worked out by itself."""
    model, config = case.model, case.model.config
    tokens, offset, _ = case.tensors(-1)
    for number, (given, found) in enumerate(_watch(model, tokens, offset, _full(case))):
        x, past, _, bias, shared = given
        layer = model.layers[number]
        assert isinstance(layer, Layer)  # noqa: S101
        M, L = past.shape[1], x.shape[1]
        for i in sorted({0, L // 2, L - 1}):
            far = int(shared.seen.far[0, i])
            distance = torch.arange(far, -1, -1, device=x.device)  # of the keys seen, oldest first
            states = layer.enter(torch.cat([past, x], dim=1)[0])  # (K, D)
            at = M + i - distance
            q = layer.query(states[M + i]).view(config.heads, config.head_width)
            kv = layer.key_value(states[at]).view(far + 1, 2, config.heads, config.head_width)
            r = layer.position(_vectors(distance, config.width, config.clamp_len))
            r = r.view(far + 1, config.heads, config.head_width)
            content = torch.einsum("he,khe->hk", q + bias[0], kv[:, 0])
            by_distance = torch.einsum("he,khe->hk", q + bias[1], r)
            weights = ((content + by_distance) * config.head_width**-0.5).softmax(dim=1)
            heads = torch.einsum("hk,khe->he", weights, kv[:, 1])
            wanted = layer.feed(x[:1, i : i + 1], layer.output(heads.flatten())[None, None], None)
            require(
                near(found[:1, i : i + 1], wanted),
                f"query {i} of layer {number} is {_apart(found[:1, i : i + 1], wanted):.2g} off "
                "its definition: a score stands at another distance than its own",
            )


def reset_per_row(case: "Case") -> None:
    """Where a document begins its row forgets all before, for good, and the other rows do not.

    Three copies of a row are read: one begins a document in mid-segment, one at its start, one
    nowhere; once with the memory as it is and once with another.
    """
    model = case.model
    memory = _full(case).rows(0, 1)
    tokens = torch.cat([case.tensors(step)[0][:1] for step in (-2, -1)], dim=1).expand(3, -1)
    L = case.layout.segment
    line = torch.arange(2 * L, device=tokens.device)
    offset = torch.stack(
        [torch.where(line < L // 2, DEEP + line, line - L // 2), line, DEEP + line]
    )
    states = memory.states.expand(-1, 3, -1, -1)
    usable = memory.usable.expand(3)
    other = tokens.clone()
    other[0, : L // 2] = (other[0, : L // 2] + 1) % model.config.vocab_size
    as_it_is = _two_segments(model, tokens, offset, Memory(states=states, usable=usable))
    changed = _two_segments(model, other, offset, Memory(states=states * -2 + 1, usable=usable))
    for row, begin in ((0, L // 2), (1, 0)):
        require(
            torch.equal(as_it_is[row, begin:], changed[row, begin:]),
            f"a document that begins at column {begin} reads what stood in its row before it",
        )
        alone = _hidden(
            model,
            tokens[:1, begin:],
            line[None, : 2 * L - begin],
            fresh(model, 1, 0),
            memory.length,
        )
        end = 2 * L if memory.length >= L else L  # as far as its memory reaches back to its start
        require(
            near(as_it_is[row, begin:end], alone[0, : end - begin]),
            f"a document that begins at column {begin} is not read as in a row of its own",
        )
    if memory.length:
        require(
            not torch.equal(as_it_is[2], changed[2]),
            "a row in which no document begins forgets too",
        )


def fresh(model: TransformerXL, rows: int, length: int | None = None) -> Memory:
    """Memory of rows that have read nothing."""
    like = model.content_bias
    return empty_memory(model.config, rows, length=length, device=like.device, dtype=like.dtype)


def near(found: Tensor, wanted: Tensor) -> bool:
    """Equal, as far as float64 tells."""
    return found.shape == wanted.shape and _apart(found, wanted) <= CLOSE


def last_of(x: Tensor, count: int) -> Tensor:
    """The last `count` of dimension 1."""
    return x[:, x.shape[1] - count :]


def _apart(found: Tensor, wanted: Tensor) -> float:
    if not found.numel():
        return 0.0
    scale = max(1.0, float(wanted.abs().max()))
    return float((found - wanted).abs().max()) / scale


@torch.no_grad()
def _read(case: "Case", step: int, memory: Memory) -> tuple[list[Tensor], Memory]:
    """Read a batch; give the input of every layer, (R, L, D), and the memory after it."""
    tokens, offset, _ = case.tensors(step)
    inputs: list[Tensor] = []
    handles = [
        layer.register_forward_pre_hook(lambda _layer, given: inputs.append(given[0].clone()))
        for layer in case.model.layers
    ]
    try:
        _, after = case.model(tokens, offset, memory)
    finally:
        for handle in handles:
            handle.remove()
    return inputs, after


def _full(case: "Case") -> Memory:
    """M states of every row, all usable: what its last batches but one left, as far as they go."""
    memory = fresh(case.model, case.rows)
    for step in range(len(case.batches) - 1):
        _, memory = _read(case, step, memory)
    memory = memory.resized(case.model.config.memory)
    return Memory(states=memory.states, usable=torch.full_like(memory.usable, memory.length))


@torch.no_grad()
def _watch(
    model: TransformerXL, tokens: Tensor, offset: Tensor, memory: Memory
) -> list[tuple[Any, Tensor]]:
    """Read a segment; give what every layer was given, and what it gave."""
    seen: list[tuple[Any, Tensor]] = []

    def look(_layer: object, given: Any, found: Any) -> None:
        seen.append((given, found))

    handles = [layer.register_forward_hook(look) for layer in model.layers]
    try:
        model(tokens, offset, memory)
    finally:
        for handle in handles:
            handle.remove()
    return seen


@torch.no_grad()
def _hidden(
    model: TransformerXL,
    tokens: Tensor,
    offset: Tensor,
    memory: Memory,
    window_of: int | None = None,
) -> Tensor:
    """The last hidden states, with the window of a memory of `window_of` states."""
    length = memory.length if window_of is None else window_of
    return model(tokens, offset, memory, reach=reach_of(model.config, length))[0]


def _two_segments(model: TransformerXL, tokens: Tensor, offset: Tensor, memory: Memory) -> Tensor:
    with torch.no_grad():
        L = tokens.shape[1] // 2
        first, memory = model(tokens[:, :L], offset[:, :L], memory)
        second, _ = model(tokens[:, L:], offset[:, L:], memory)
    return torch.cat([first, second], dim=1)


def _vectors(distance: Tensor, width: int, clamp_len: int) -> Tensor:
    """Position vectors as published: sines, then cosines, of the distance over wave lengths."""
    t = distance.double().clamp(max=clamp_len) if clamp_len else distance.double()
    n = torch.arange(width // 2, device=t.device, dtype=torch.float64)
    angle = t[:, None] / 10_000 ** (2 * n / width)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def _places(sees: Tensor) -> str:
    first = sees[0].nonzero()[:, 0].tolist()
    return "none" if not first else f"{first[0]} to {first[-1]} ({len(first)})"
