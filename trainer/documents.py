"""Where a run's documents come from: a finished store, or one that is built while it trains.

Of the latter a checkpoint keeps which parts were known, by hash: what it stands on is a beginning
of the finished store, and a resume sees that it still is.
"""

from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.growing import GrowingStore, open_documents
from pipeline.publish import parts_identity
from pipeline.rows_state import RowsState
from pipeline.store import Store
from trainer.plan import TrainPlan


def open_store(plan: TrainPlan) -> Store | GrowingStore:
    """Open the plan's store and see that it is the one the driver saw.

    Raises:
        DataError: It is not, or it cannot be read.
    """
    store = open_documents(
        plan.store, growing=bool(plan.building), cache=plan.cache, cache_bytes=plan.cache_bytes
    )
    if isinstance(store, GrowingStore):
        found, wanted = store.head.plan or plan.building, plan.building  # a finished one has none
    else:
        found, wanted = store.fingerprint, plan.store_fingerprint
    if (found, store.tokenizer_sha256) != (wanted, plan.tokenizer_sha256):
        raise DataError(
            f"{plan.store} has fingerprint {found[:12]}, the driver saw {wanted[:12]}. Workers "
            "must see the same store: put it where all nodes read it."
        )
    return store


def parts_of(store: Store | GrowingStore, rows: RowsState) -> dict[str, Any]:
    """What a checkpoint keeps of a store that is built meanwhile; nothing of a finished one.

    Args:
        store: As far as this process knows it. Its row server may have seen more of it.
        rows: What the checkpoint stands on: the parts up to its last document are known then.

    Raises:
        OSError: They cannot be seen from here yet.
    """
    if isinstance(store, Store):
        return {}
    last = int(rows.doc_id.max())
    while store.documents <= last and store.grow(now=True):
        pass
    if store.documents <= last:
        raise OSError(
            f"{store.url} shows {store.documents:,} documents here, and its rows have read up to "
            f"document {last:,}, as another process sees it"
        )
    count = store.num_parts
    return {"parts": {"count": count, "sha256": store.identity(count)}}


def check_parts(store: Store | GrowingStore, saved: dict[str, Any], *, where: Path) -> None:
    """See that what a checkpoint read while it was built is a beginning of `store`.

    Args:
        store: The store of the resume.
        saved: The checkpoint's state.
        where: The checkpoint, for the message.

    Raises:
        DataError: It is not.
    """
    if "parts" not in saved:
        return
    count, wanted = saved["parts"]["count"], saved["parts"]["sha256"]
    if isinstance(store, Store):
        entries = store.manifest.parts[:count]
        known, found = len(entries), parts_identity(entries)
    else:
        known = min(count, store.num_parts)
        found = store.identity(known)
    if (known, found) != (count, wanted):
        raise DataError(
            f"{where} was written when the first {count:,} parts of {store.url} were built, with "
            f"sha256 {wanted[:12]}; its first {known:,} parts now have {found[:12]}. The corpus, "
            "the tokenizer or the settings of [data] were changed since: put them back, or give "
            "the run another name to start anew."
        )
