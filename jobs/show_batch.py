"""`longrow show RUN --batch STEP`: the very texts that a past step read, for who hunts a spike."""

import json
from typing import Any

from jobs.past_rows import anchor_of, check_reach
from jobs.visible import echo
from pipeline.anchors import at
from pipeline.batch import Batch, digest
from pipeline.growing import GrowingStore
from pipeline.mixture import Mixture
from pipeline.server import RowServer
from pipeline.store import Store
from trainer.errors import ConfigError
from trainer.run_folder import RunFolder


def show_batch(folder: RunFolder, step: int) -> dict[str, Any]:
    """Print what each row read in a step.

    Args:
        folder: The run's.
        step: As the lines of metrics.jsonl count, from 1.

    Returns:
        JSON types; `sha256` is the digest of the batch of all rows (docs/formats.md, 1.5).

    Raises:
        ConfigError: The run has not come so far.
        DataError: Its store is not there any more, or is another one now.
    """
    line = _line(folder, step)
    store, anchor = anchor_of(folder, step - 1)
    check_reach(store, anchor, step)
    lengths = store.by_length("train")
    server = RowServer(store, anchor.layout)
    state = at(anchor, lengths, step - 1).state
    batch = server.read(state, 1, (0, anchor.layout.rows)).batch(0)
    facts = {
        "run": folder.place,
        "step": step,
        "store": store.url,
        "sha256": digest(batch),
        "train_loss": line["train/loss"],
        "grad_norm": line["train/grad_norm"],
        "rows": [
            {"row": row, "pieces": list(_pieces(store, batch, row))}
            for row in range(anchor.layout.rows)
        ],
    }
    echo(
        f"step {step} of {folder.place}: loss {_number(line['train/loss'])}, gradient norm "
        f"{_number(line['train/grad_norm'])}\n{anchor.layout.rows} rows of "
        f"{anchor.layout.segment} tokens from {store.url}\nsha256 {facts['sha256']}"
    )
    for row in facts["rows"]:
        echo(f"\nrow {row['row']}")
        for piece in row["pieces"]:
            echo(_in_words(piece))
    return facts


def _line(folder: RunFolder, step: int) -> dict[str, Any]:
    """The metric line of a step."""
    last = 0
    for line in folder.lines():
        if line["kind"] == "step":
            if line["step"] == step:
                return line
            last = line["step"]
    raise ConfigError(
        f"--batch {step}: {folder.place} has read the steps 1 to {last}. Name one of them."
    )


def _pieces(store: Store | GrowingStore, batch: Batch, row: int) -> Any:
    """The stretches of documents that a row read, in order, with their texts."""
    tokenizer = store.tokenizer()
    segment = batch.tokens.shape[1]
    column = 0
    while column < segment:
        doc_id, offset = int(batch.doc_id[row, column]), int(batch.offset[row, column])
        end = column + 1
        while (
            end < segment
            and batch.doc_id[row, end] == doc_id
            and (doc_id < 0 or batch.offset[row, end] > 0)
        ):
            end += 1
        told: dict[str, Any] = {"column": column, "inputs": end - column, "document": None}
        if doc_id >= 0:
            ids = batch.tokens[row, column:end]
            source, record = store.origin(doc_id)
            told |= {
                "document": doc_id,
                "store": _store_of(store, doc_id),
                "id": store.uid(doc_id),
                "source": source,
                "record": record,
                "offset": offset,
                "tokens": len(store.read(doc_id)) - 1,
                "reset": offset == 0,
                "ends": int(batch.targets[row, end - 1]) == store.eod,
                "text": tokenizer.decode(ids if offset else ids[1:]),
            }
        yield told
        column = end


def _store_of(store: Store | GrowingStore, doc_id: int) -> str:
    """URL of the store that holds a document, of a mixture or alone."""
    if isinstance(store, Mixture):
        return store.stores[store.number_of(doc_id)].url
    return store.url


def _in_words(piece: dict[str, Any]) -> str:
    if piece["document"] is None:
        return f"  column {piece['column']}: {piece['inputs']} pads"
    last = piece["offset"] + piece["inputs"] - 1
    reset = ", begins here" if piece["reset"] else ""
    ends = ", ends here" if piece["ends"] else ""
    text = json.dumps(piece["text"], ensure_ascii=False)[1:-1]
    return (
        f"  column {piece['column']}: document {piece['document']} `{piece['id']}` "
        f"({piece['source']} at {piece['record']}), offsets {piece['offset']:,} to {last:,} of "
        f"{piece['tokens'] + 1:,}{reset}{ends}\n    {text}"
    )


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"
