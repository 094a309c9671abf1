"""Three of the nine points: what the rows read, what is scored, and evaluation. See check.py."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from model.reach import reach_of
from pipeline.batch import NO_TARGET, Batch
from trainer import evaluation
from trainer.check_model import Wrong, fresh, near, require
from trainer.step import Objective, Rows

if TYPE_CHECKING:
    from trainer.check import Case


def segments_in_order(case: "Case") -> None:
    """Each row goes on, step by step, where it stood, and reads its documents as stored."""
    L, store = case.layout.segment, case.store
    for row in range(case.rows):
        doc_id, offset = int(case.state.doc_id[row]), 0
        text = store.read(doc_id) if doc_id >= 0 else np.empty(0, dtype=np.int64)
        if doc_id >= 0:
            steps = case.state.step - case.state.first_step
            offset = steps * L - int(case.state.began[row])  # of its next input
        for number, batch in enumerate(case.batches):
            where = f"step {case.state.step + number}, row {row}"
            require(
                bool(batch.reset[row]) == (batch.offset[row, 0] == 0),
                f"{where}: reset is {batch.reset[row]} at offset {batch.offset[row, 0]}",
            )
            for column in range(L):
                if offset >= len(text):  # the document has ended, and any other may begin
                    if column and case.layout.boundary == "pad":
                        _only_pads(batch, row, column, where)
                        break
                    doc_id, offset = int(batch.doc_id[row, column]), 0
                    text = store.read(doc_id)
                names = ("doc_id", "offset", "tokens", "targets")
                found = tuple(int(getattr(batch, name)[row, column]) for name in names)
                token = int(text[offset - 1]) if offset else store.bos
                wanted = (doc_id, offset, token, int(text[offset]))
                require(
                    found == wanted,
                    f"{where}, column {column}: document, offset, token and target are {found}, "
                    f"wanted {wanted}",
                )
                offset += 1


def _only_pads(batch: Batch, row: int, column: int, where: str) -> None:
    """The rest of the segment is nothing to read, to score or to remember."""
    for name, wanted in (("doc_id", -1), ("offset", 0), ("targets", NO_TARGET)):
        found = getattr(batch, name)[row, column:]
        require(
            bool((found == wanted).all()),
            f"{where}: the pads from column {column} on have {name} {found.tolist()}, wanted is "
            f"{wanted}",
        )


def loss_on_the_segment(case: "Case") -> None:
    """The loss is the sum of -log p of the segment's own targets, each once; memory has none."""
    model = case.model
    memory = fresh(model, case.rows)
    for step in range(2):
        tokens, offset, targets = case.tensors(step)
        numbers = torch.arange(case.rows, device=tokens.device)
        rows = Rows(tokens=tokens, targets=targets, offset=offset, numbers=numbers)
        with torch.no_grad():
            loss = Objective(model)(rows, memory, None)[0]
            hidden, memory = model(tokens, offset, memory)
            log_prob = model.log_prob(hidden)
        real = targets >= 0
        wanted = -log_prob.gather(2, targets.clamp(min=0)[..., None])[..., 0][real].sum()
        require(
            near(loss[None] / real.sum(), wanted[None] / real.sum()),
            f"the loss of step {step} is {float(loss):.6f}, the sum of -log p of its "
            f"{int(real.sum())} targets {float(wanted):.6f}",
        )


@torch.no_grad()
def evaluation_reuses_memory(case: "Case") -> None:
    """A held-out document read segment by segment scores as one read at once.

    As many segments are read as the memory still reaches back over, so that both must be equal.
    """
    model, M = case.model, case.model.config.memory
    split = "validation" if len(case.store.doc_ids("validation")) else "train"
    counts = case.store.num_tokens(split)
    doc_id = int(case.store.doc_ids(split)[int(counts.argmax())])
    text = torch.from_numpy(case.store.read(doc_id).astype("int64"))
    cut = max(1, min(case.layout.segment, M or case.layout.segment, len(text) // 2))
    cuts = range(0, min(len(text), M + 1 if M else 2 * cut), cut)  # each reaches back to 0
    end = min(len(text), cuts[-1] + cut)
    device = model.content_bias.device
    tokens = torch.cat([torch.tensor([case.store.bos]), text[: end - 1]])[None].to(device)
    offset = torch.arange(end, device=device)[None]
    read = evaluation.reader(model, 1, memory=M)
    parts = [read(tokens[:, low : low + cut], offset[:, low : low + cut]) for low in cuts]
    found = torch.cat(parts, dim=1)
    wanted = _at_once(case, tokens, offset, cut)
    if not near(found, wanted):
        first = int(((found - wanted).abs().amax(dim=2)[0] > 1e-9).nonzero()[0])
        raise Wrong(
            f"document {doc_id}, read in segments of {cut} with memory {M}, differs from the same "
            f"read at once from offset {first} on"
        )


def _at_once(case: "Case", tokens: Tensor, offset: Tensor, cut: int) -> Tensor:
    """By the definition, with no memory: in one segment, or in many if nothing is remembered."""
    model, M = case.model, case.model.config.memory
    width = tokens.shape[1] if M else cut
    parts = [
        model(
            tokens[:, low : low + width],
            offset[:, low : low + width],
            fresh(model, 1, 0),
            reach=reach_of(model.config, M),
        )[0]
        for low in range(0, tokens.shape[1], width)
    ]
    return torch.cat(parts, dim=1)
