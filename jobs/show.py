"""`longrow show`: what a store holds, in numbers and document by document."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from jobs.entry import Job, Outcome, run
from jobs.visible import echo
from pipeline.anchors import first_anchor
from pipeline.corpus import Reject
from pipeline.files import exists, join, local_path, open_binary
from pipeline.layout import Layout
from pipeline.lengths import mixed
from pipeline.manifest import PARTS, REJECTS
from pipeline.mixture import Mixture
from pipeline.store import Store

MOST_NAMED = 1_000_000  # documents whose sources are counted one by one: seconds, not minutes
SHOWN = 5  # sources, and rejects, in the text; all sources are in the JSON
BAR = 40  # characters
FIRST_LINES, FIRST_CHARS = 20, 2_000  # of a document
MOST_AROUND, MOST_STEPS = 200, 10_000_000


@click.command("show", cls=Job)
@click.argument("what", metavar="STORE|RUN|CHECKPOINT")
@click.option("--doc", type=int, help="Show this document of the store, by its number.")
@click.option("--uid", default="", help="Show the store's first document with this id.")
@click.option("--step", type=click.IntRange(1), help="Draw what the rows read around this step.")
@click.option("--around", type=click.IntRange(0), default=4, help="With --step: steps beside it. 4")
@click.option("--rows", type=int, help="With --step, of a store: rows. 16")
@click.option("--segment", type=int, help="With --step, of a store: tokens a step. 128")
@click.option("--seed", type=int, help="With --step, of a store: of the order. 0")
@click.option("--shuffle", type=click.Choice(["global", "block", "none"]), help="Likewise. global")
@click.option("--block", type=int, help="With --shuffle block: documents of a block. 1024")
@click.option("--boundary", type=click.Choice(["pack", "pad"]), help="Likewise. pack")
@click.option("--batch", type=click.IntRange(1), help="Of a run: the texts that this step read.")
def command(
    what: str,
    *,
    doc: int | None,
    uid: str,
    step: int | None,
    around: int,
    batch: int | None,
    **layout: Any,
) -> Outcome:
    """Say what a store, a run or a checkpoint holds.

    Steps count from 1, as in the run's metrics.jsonl.

    STORE is a folder or URL; RUN a run's folder, or its name under runs/; CHECKPOINT one of the
    folders in a run's checkpoints/.
    """
    kind = _kind(what)
    layout = {name: value for name, value in layout.items() if value is not None}
    if batch is not None or step is not None or layout:
        if doc is not None or uid:
            raise click.UsageError("--doc and --uid show a document, the others rows: give one.")
        return Outcome(facts=_rows(what, kind, step=step, around=around, batch=batch, **layout))
    if doc is None and not uid and kind != "store":
        return Outcome(facts=_show_run(what, kind))
    opened = Store.open(_documents_of(what, kind))
    if uid:
        doc = _number(opened, uid, doc)
    if doc is None:
        facts = describe(opened)
        echo(in_words(facts))
    else:
        facts = document(opened, doc)
        head = {name: value for name, value in facts.items() if name != "text"}
        echo("\n".join(f"{name:<11} {value}" for name, value in head.items()))
        echo(f"\n{beginning(facts['text'])}")
    return Outcome(facts=facts)


def describe(store: Store) -> dict[str, Any]:
    """A store in numbers.

    Returns:
        JSON types. `lengths` has a row for each power of two: the documents of at least so many
        tokens and fewer than the next, and the tokens in them.
    """
    manifest = store.manifest
    splits = {name: store.num_tokens(name) for name in ("train", "validation")}
    lengths = np.concatenate(list(splits.values()))
    dropped = _dropped(store)
    return {
        "store": store.url,
        "fingerprint": store.fingerprint,
        "vocab_size": store.vocab_size,
        "tokenizer": manifest.tokenizer,
        "parts": len(manifest.parts),
        "documents": store.documents,
        "tokens": store.tokens,
        "bytes": manifest.bytes - int(store.sizes(dropped)[0].sum()),
        "splits": {
            name: {"documents": len(counts), "tokens": int(counts.sum())}
            for name, counts in splits.items()
        },
        "empty": manifest.empty,
        "dropped": manifest.dropped,
        "duplicate_ids": manifest.duplicate_ids,
        "rejected": manifest.rejected,
        "first_rejects": _first_rejects(store),
        "sources": _sources(store, set(dropped.tolist())),
        "lengths": histogram(lengths),
    }


def histogram(lengths: np.ndarray) -> list[dict[str, int]]:
    """Documents and tokens by length, a row for each power of two at which there are any.

    Args:
        lengths: (documents,) tokens of each, at least 1.
    """
    powers = np.ceil(np.log2(np.maximum(lengths, 1) + 1)).astype(int) - 1  # 2^p <= length
    rows = (lengths[powers == power] for power in range(int(powers.max(initial=0)) + 1))
    return [
        {
            "from": 2**power,
            "below": 2 ** (power + 1),
            "documents": len(row),
            "tokens": int(row.sum()),
        }
        for power, row in enumerate(rows)
        if len(row)
    ]


def document(store: Store, doc_id: int) -> dict[str, Any]:
    """One document: where it is from, how large it is, its text as decoded from its ids.

    Raises:
        click.UsageError: There is no such document.
    """
    if not 0 <= doc_id < store.manifest.documents:
        raise click.UsageError(
            f"--doc {doc_id}: {store.url} holds the documents 0 to {store.manifest.documents - 1}."
        )
    source, record = store.origin(doc_id)
    sizes = [int(column[0]) for column in store.sizes([doc_id])]
    held_out = bool(np.isin(doc_id, store.doc_ids("validation")))
    return {
        "document": doc_id,
        "id": store.uid(doc_id),
        "source": source,
        "record": record,
        "split": "validation" if held_out else "train",
        "tokens": len(store.read(doc_id)) - 1,
        "bytes": sizes[0],
        "characters": sizes[1],
        "words": sizes[2],
        "text": store.text(doc_id),
    }


def beginning(text: str) -> str:
    """The first lines of a text, and how much follows them."""
    shown = "".join(text[:FIRST_CHARS].splitlines(keepends=True)[:FIRST_LINES])
    left = len(text) - len(shown)
    return shown + (f"\n... {left:,} more characters; --json gives all." if left else "")


def _number(store: Store, uid: str, doc: int | None) -> int:
    if doc is not None:
        raise click.UsageError("--doc and --uid each name a document: give one of them.")
    found = store.find(uid)
    if found is None:
        raise click.UsageError(
            f"--uid {uid}: no document of {store.url} has this id. A document without an id of its "
            "own is called SOURCE:RECORD; rejects.jsonl names the records that were left out."
        )
    return found


def in_words(facts: dict[str, Any]) -> str:
    """What `describe` found, for a person."""
    held_out = facts["splits"]["validation"]
    per_token = facts["bytes"] / max(facts["tokens"], 1)
    bad = sum(facts["rejected"].values())
    lines = [
        f"store       {facts['store']}, fingerprint {facts['fingerprint'][:16]}",
        f"documents   {facts['documents']:,}, {held_out['documents']:,} of them held out",
        f"tokens      {facts['tokens']:,}, {held_out['tokens']:,} of them held out",
        f"text        {facts['bytes']:,} bytes, {per_token:.2f} a token",
        f"parts       {facts['parts']:,}, of {facts['vocab_size']:,} token ids",
        f"duplicates  {facts['duplicate_ids']:,} ids stand at more than one document",
        f"left out    {bad:,} bad records, {facts['empty']:,} empty documents"
        + (f", {facts['dropped']:,} repeated texts" if facts["dropped"] else ""),
    ]
    if bad:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in facts["rejected"].items())
        lines.append(f"            {reasons}; rejects.jsonl names each:")
    lines += [
        f"            {Reject(**reject).place}: {reject['reason']}"
        for reject in facts["first_rejects"]
    ]
    lines += ["", "sources"]
    named = sorted(facts["sources"].items(), key=lambda item: (-item[1], item[0]))
    lines += [f"  {count:>12,}  {source}" for source, count in named[:SHOWN]]
    if len(named) > SHOWN:
        lines.append(f"  and {len(named) - SHOWN:,} more")
    if not named:
        lines.append(f"  not counted: more than {MOST_NAMED:,} documents")
    lines += ["", "length in tokens      documents          tokens   share of the tokens"]
    for row in facts["lengths"]:
        share = row["tokens"] / max(facts["tokens"], 1)
        span = f"{row['from']:,} to {row['below'] - 1:,}"
        bar = "#" * round(share * BAR)
        lines.append(f"{span:<20} {row['documents']:>10,} {row['tokens']:>15,}   {bar}")
    return "\n".join(lines)


def _kind(what: str) -> Literal["store", "run", "checkpoint"]:
    """By what lies there; what is nothing is looked at as a store, whose error says the way out."""
    folder = local_path(what)
    if folder is None:
        if exists(join(what, "config.json")):
            return "run"
        return "checkpoint" if exists(join(what, "rank-0.json")) else "store"
    if (folder / PARTS).is_dir():
        return "store"
    if any((place / "config.json").is_file() for place in (folder, Path("runs") / what)):
        return "run"
    return "checkpoint" if any(folder.glob("rank-*.json")) else "store"


def _documents_of(what: str, kind: str) -> str:
    """The store that is meant: that of a run is the one it reads."""
    if kind == "store":
        return what
    from jobs.find import config_of, find_run, run_of

    return config_of(run_of(Path(what)) if kind == "checkpoint" else find_run(what)).data.reads


def _rows(
    what: str, kind: str, *, step: int | None, around: int, batch: int | None, **layout: Any
) -> dict[str, Any]:
    """What rows read, of a store or a run.

    Raises:
        click.UsageError: Options that do not go together.
    """
    newest = None  # nothing is past, nothing to come
    if around > MOST_AROUND:
        raise click.UsageError(f"--around {around}: at most {MOST_AROUND} steps can be drawn.")
    if kind == "run":
        from jobs.find import find_run
        from jobs.past_rows import anchors_around, newest_step
        from jobs.show_batch import show_batch

        if layout:
            raise click.UsageError(f"--{next(iter(layout))} is of a store; a run has its own rows.")
        if batch is not None:
            return show_batch(find_run(what), batch)
        folder, here = find_run(what), step or 1
        newest = newest_step(folder)
        store, anchors = anchors_around(folder, max(0, here - 1 - around), here - 1 + around)
    else:
        if batch is not None or kind == "checkpoint":
            raise click.UsageError(f"{what} is a {kind}: --batch shows what a run read.")
        store = Store.open(what)
        anchors = [
            first_anchor(
                Layout(**layout),
                store=what,
                store_fingerprint=store.fingerprint,
                sources=len(mixed(store.by_length("train")).sources),
            )
        ]
    if step is None:
        raise click.UsageError("--rows and the like draw rows around a step: add --step.")
    if kind == "store" and step > MOST_STEPS:  # a store has no anchors: all before it is dealt
        raise click.UsageError(f"--step {step}: of a store, at most step {MOST_STEPS:,} is drawn.")
    from jobs.show_rows import show_rows

    return show_rows(store, anchors, step=step, around=around, newest=newest)


def _show_run(what: str, kind: str) -> dict[str, Any]:
    from jobs.find import (
        checkpoint_at,
        find_run,
    )  # torch is seconds to import, and a store needs none
    from jobs.show_run import show_checkpoint, show_run

    return (
        show_checkpoint(checkpoint_at(what)) if kind == "checkpoint" else show_run(find_run(what))
    )


def _dropped(store: Store) -> np.ndarray:
    """(dropped,) numbers of the documents that were left out as repeated."""
    if not store.manifest.dropped:
        return np.zeros(0, np.int64)
    left = np.ones(store.manifest.documents, np.bool_)
    for split in ("train", "validation"):
        left[store.doc_ids(split)] = False
    return np.flatnonzero(left)


def _sources(store: Store, dropped: set[int]) -> dict[str, int]:
    count = store.manifest.documents
    if count > MOST_NAMED:
        return {}
    kept = (doc_id for doc_id in range(count) if doc_id not in dropped)
    return dict(Counter(store.origin(doc_id)[0] for doc_id in kept))


def _first_rejects(store: Store) -> list[dict[str, Any]]:
    if isinstance(store, Mixture):
        return [reject for one in store.stores for reject in _first_rejects(one)][:SHOWN]
    if not store.manifest.rejected:
        return []
    with open_binary(join(store.url, REJECTS)) as file:
        return [json.loads(line) for line, _ in zip(file, range(SHOWN), strict=False)]


if __name__ == "__main__":
    run(command)
