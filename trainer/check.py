"""Nine points at which a Transformer-XL goes wrong, tried on a run's own model and store.

Every point calls what training and evaluation call, and compares it with the definition. All is
done in float64, so that equal means equal; weights are copied, nothing of the run is touched.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.transformer_xl import TransformerXL
from pipeline.batch import Batch
from pipeline.layout import Layout
from pipeline.rows_state import RowsState
from pipeline.server import RowServer
from pipeline.store import Store
from trainer import check_model, check_stream
from trainer.check_model import Wrong

ROWS = 3  # of the run's rows are read
MAX_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One of the nine.

    Attributes:
        name: What was looked at.
        wrong: What is wrong; empty if nothing is.
    """

    name: str
    wrong: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """What is checked.

    Attributes:
        model: In float64.
        store: Its documents.
        layout: The run's rows.
        state: Where the rows are read from.
        batches: What the first ROWS rows read there.
    """

    model: TransformerXL
    store: Store
    layout: Layout
    state: RowsState
    batches: list[Batch]

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return len(self.batches[0].tokens)

    def tensors(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, offsets and targets of a batch, (R, L) int64 each."""
        batch, device = self.batches[step], self.model.content_bias.device
        tokens, offset, targets = (
            torch.from_numpy(array.astype("int64")).to(device)
            for array in (batch.tokens, batch.offset, batch.targets)
        )
        return tokens, offset, targets


def make_case(
    model: TransformerXL, store: Store, layout: Layout, state: RowsState | None = None
) -> Case:
    """Read what the check needs: enough steps to fill the memory and go on.

    Args:
        model: Is copied.
        store: The run's.
        layout: The run's.
        state: Where to read; None begins at step 0.

    Raises:
        DataError, RowsError: As `RowServer.read`.
    """
    server = RowServer(store, layout)
    steps = min(MAX_STEPS, -(-model.config.memory // layout.segment) + 2)
    start = at = state or server.initial_state()
    batches: list[Batch] = []
    while len(batches) < steps:
        block = server.read(at, steps - len(batches), (0, min(ROWS, layout.rows)))
        batches += [block.batch(index) for index in range(block.steps)]
        at = block.after
    double = copy.deepcopy(model).double().requires_grad_()
    return Case(model=double, store=store, layout=layout, state=start, batches=batches)


POINTS: dict[str, Callable[[Case], None]] = {
    "memory shape a layer": check_model.memory_shape,
    "detached": check_model.detached,
    "trimmed to M": check_model.trimmed,
    "rectangular mask": check_model.rectangular_mask,
    "distances aligned": check_model.distances_aligned,
    "reset per row at document boundaries": check_model.reset_per_row,
    "segments in order in the row": check_stream.segments_in_order,
    "loss on the current segment only": check_stream.loss_on_the_segment,
    "evaluation with memory reused": check_stream.evaluation_reuses_memory,
}


def check(case: Case) -> list[Point]:
    """Try all nine points."""
    return [Point(name=name, wrong=_try(act, case)) for name, act in POINTS.items()]


def _try(act: Callable[[Case], None], case: Case) -> str:
    try:
        act(case)
    except Wrong as wrong:
        return str(wrong)
    except Exception as error:  # noqa: BLE001 - a point that cannot even be tried is not ok
        return f"it could not be tried: {type(error).__name__}: {error}"
    return ""
