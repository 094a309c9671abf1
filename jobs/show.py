"""`longrow show`: what a store, a run or a checkpoint holds."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np

from jobs.entry import Job, Outcome, run
from pipeline.files import join, open_binary
from pipeline.manifest import REJECTS
from pipeline.store import Store

MOST_NAMED = 1_000_000  # documents whose sources are counted one by one: seconds, not minutes
SHOWN = 5  # sources, and rejects, in the text; all sources are in the JSON
BAR = 40  # characters


@click.command("show", cls=Job)
@click.argument("what", metavar="STORE|RUN|CHECKPOINT")
@click.option("--doc", type=int, help="Show this document: its number in the store.")
def command(what: str, *, doc: int | None) -> Outcome:
    """Say what a store, a run or a checkpoint holds."""
    if (told := _of_a_run(what)) is not None:
        return Outcome(facts=told)
    opened = Store.open(what)
    if doc is None:
        facts = describe(opened)
        print(in_words(facts))
    else:
        facts = document(opened, doc)
        text = facts.pop("text")
        print("\n".join(f"{name:<11} {value}" for name, value in facts.items()))
        print(f"\n{text}")
        facts["text"] = text
    return Outcome(facts=facts)


def _of_a_run(word: str) -> dict[str, Any] | None:
    """What there is to say if `word` names a run or a checkpoint; None if it does not."""
    from jobs.find import is_checkpoint, is_run

    if is_checkpoint(word):
        from jobs.show_run import show_checkpoint

        return show_checkpoint(Path(word).resolve())
    if is_run(word):
        from jobs.find import find_run
        from jobs.show_run import show_run

        return show_run(find_run(word))
    return None


def describe(store: Store) -> dict[str, Any]:
    """A store in numbers.

    Returns:
        JSON types. `lengths` has a row for each power of two: the documents of at least so many
        tokens and fewer than the next, and the tokens in them.
    """
    manifest = store.manifest
    splits = {name: store.num_tokens(name) for name in ("train", "validation")}
    lengths = np.concatenate(list(splits.values()))
    return {
        "store": store.url,
        "fingerprint": store.fingerprint,
        "vocab_size": store.vocab_size,
        "tokenizer": manifest.tokenizer,
        "parts": len(manifest.parts),
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "bytes": manifest.bytes,
        "splits": {
            name: {"documents": len(counts), "tokens": int(counts.sum())}
            for name, counts in splits.items()
        },
        "empty": manifest.empty,
        "duplicate_ids": manifest.duplicate_ids,
        "rejected": manifest.rejected,
        "first_rejects": _first_rejects(store),
        "sources": _sources(store),
        "lengths": _histogram(lengths),
    }


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


def in_words(facts: dict[str, Any]) -> str:
    """What `describe` found, for a person."""
    train, held_out = facts["splits"]["train"], facts["splits"]["validation"]
    lines = [
        f"store       {facts['store']}, fingerprint {facts['fingerprint'][:16]}",
        f"documents   {facts['documents']:,} ({train['documents']:,} to train on, "
        f"{held_out['documents']:,} held out) in {facts['parts']:,} parts",
        f"tokens      {facts['tokens']:,} ({train['tokens']:,} to train on, "
        f"{held_out['tokens']:,} held out), {facts['vocab_size']:,} ids",
        f"text        {facts['bytes']:,} bytes, "
        f"{facts['bytes'] / max(facts['tokens'], 1):.2f} a token",
        f"left out    {sum(facts['rejected'].values()):,} bad records, "
        f"{facts['empty']:,} empty documents; {facts['duplicate_ids']:,} ids are not unique",
    ]
    lines += [
        f"            {reject['source']} at byte {reject['record']:,}: {reject['reason']}"
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


def _histogram(lengths: np.ndarray) -> list[dict[str, int]]:
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


def _sources(store: Store) -> dict[str, int]:
    count = store.manifest.documents
    if count > MOST_NAMED:
        return {}
    return dict(Counter(store.origin(doc_id)[0] for doc_id in range(count)))


def _first_rejects(store: Store) -> list[dict[str, Any]]:
    if not store.manifest.rejected:
        return []
    with open_binary(join(store.url, REJECTS)) as file:
        return [json.loads(line) for line, _ in zip(file, range(SHOWN), strict=False)]


if __name__ == "__main__":
    run(command)
