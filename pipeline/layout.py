"""What a run decides about its rows: how many, how long a segment, in which order."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, overload

from pipeline.errors import DataError
from pipeline.lengths import Int64s, Mixed
from pipeline.lockstep import rows_served
from pipeline.order import Shuffle

Boundary = Literal["pack", "pad"]
MAX_SEED = (1 << 63) - 1


class RowsError(ValueError):
    """Rows were asked for that cannot be: bad use, `longrow` exits with 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The rows of the whole run. World size is not part of it, so it may change.

    Attributes:
        rows: B, lines of the global batch, of all workers together.
        segment: L, tokens that a row reads at each step.
        seed: Seed of the order of the documents.
        shuffle: `global` draws a new order of all documents each epoch; `block` mixes those of few
            blocks at a time, for a store that lies far away; `none` is store order.
        block: Documents of a block; with `block` alone.
        boundary: `pack` reads documents end to end; `pad` begins each in a segment of its own.
    """

    rows: int = 16
    segment: int = 128
    seed: int = 0
    shuffle: Shuffle = "global"
    block: int = 1024
    boundary: Boundary = "pack"

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise RowsError(f"rows.rows = {self.rows} must be above 0.")
        if self.segment < 1:
            raise RowsError(f"rows.segment = {self.segment} must be above 0.")
        if not 0 <= self.seed <= MAX_SEED:
            raise RowsError(f"rows.seed = {self.seed} must lie between 0 and {MAX_SEED}.")
        if self.shuffle not in ("global", "block", "none"):
            raise RowsError(f'rows.shuffle = "{self.shuffle}" must be "global", "block" or "none".')
        if self.block < 1:
            raise RowsError(f"rows.block = {self.block} must be above 0.")
        if self.boundary not in ("pack", "pad"):
            raise RowsError(f'rows.boundary = "{self.boundary}" must be "pack" or "pad".')

    def identity(self) -> dict[str, Any]:
        """What the stream depends on, by name; what came later is left out where it is unused."""
        unused = {"block"} if self.shuffle != "block" else set[str]()
        unused |= {"boundary"} if self.boundary == "pack" else set()
        return {key: value for key, value in asdict(self).items() if key not in unused}

    @overload
    def taken(self, num_tokens: int) -> int: ...
    @overload
    def taken(self, num_tokens: Int64s) -> Int64s: ...
    def taken(self, num_tokens: int | Int64s) -> int | Int64s:
        """Row positions that a document takes: its inputs, and pads up to a segment's end."""
        inputs = num_tokens + 1
        return inputs if self.boundary == "pack" else -(-inputs // self.segment) * self.segment


def check_layout(
    layout: Layout, *, documents: int | Mixed, world_size: int, accumulation: int = 1
) -> None:
    """Refuse, before anything starts, rows that the documents or the workers cannot fill.

    Raises:
        DataError: Fewer documents than rows, or a source of a mixture with too few for its share.
        RowsError: The rows cannot be shared out evenly.
    """
    if isinstance(documents, int):
        check_documents(layout.rows, documents)
    else:
        check_sources(layout.rows, documents)
        check_lockstep(layout, documents)
    check_shares(layout.rows, world_size=world_size, accumulation=accumulation)


def check_documents(rows: int, documents: int) -> None:
    """Refuse more rows than documents.

    Raises:
        DataError: Some rows would read the same text in lockstep.
    """
    if documents < 1:
        raise DataError(
            "The store holds no training document; one for each row is wanted. Build it from more "
            "text."
        )
    if documents < rows:
        raise DataError(
            f"The store holds {documents:,} training documents and rows.rows = {rows:,}: rows "
            "would read the same text at the same time. At least one document for each row is "
            f"wanted: set rows.rows to {documents:,} or less, or cut long documents into more with "
            "`longrow build --max-document-tokens N`."
        )


def check_sources(rows: int, mixture: Mixed) -> None:
    """Refuse rows that the documents of one source, or of each of several, cannot fill.

    Raises:
        DataError: Some rows would read the same text in lockstep.
    """
    counts, total = [source.count for source in mixture.sources], sum(mixture.weights)
    if len(counts) == 1:
        check_documents(rows, counts[0])
        return
    # A source is read by its share of the rows at a time.
    wanted = [-(-rows * weight // total) for weight in mixture.weights]
    if short := [i for i in range(len(counts)) if counts[i] < wanted[i]]:
        i = short[0]
        raise DataError(
            f"Store {i} of the mixture holds {counts[i]:,} training documents, and about "
            f"{wanted[i]:,} of the {rows:,} rows would read it at a time, of weight "
            f"{mixture.weights[i]} in {total}: they would read the same text at the same time. "
            "Give it a lower weight, set rows.rows lower, or cut its long documents into more with "
            "`longrow build --max-document-tokens N`."
        )


def check_lockstep(layout: Layout, mixture: Mixed) -> None:
    """Refuse rows of which more may read a source at a time than it has documents.

    A source with a document for each row is never refused; one with fewer where its share and the
    lengths do not rule it out (lockstep.py). That reads all lengths, so it is for a run's start.

    Raises:
        DataError: Some rows might read the same text in lockstep.
    """
    counts = [source.count for source in mixture.sources]
    few = [i for i in range(len(counts)) if counts[i] < layout.rows]
    if len(counts) == 1 or not few:
        return
    served = {i: rows_served(mixture, i, layout.taken) for i in few}
    i = min(few, key=lambda i: served[i])
    if served[i] < layout.rows:
        longest = max(source.longest for source in mixture.sources)
        raise DataError(
            f"Store {i} of the mixture holds {counts[i]:,} training documents, fewer than the "
            f"{layout.rows:,} rows, and with weight {mixture.weights[i]} in {sum(mixture.weights)} "
            f"and documents of up to {longest:,} tokens in the mixture more rows than it has "
            "documents may read it: they would read the same text at the same time. Set rows.rows "
            f"to {served[i]:,} or less, or cut the long documents of the stores into more with "
            "`longrow build --max-document-tokens N`; or give it a lower weight."
        )


def check_shares(rows: int, *, world_size: int, accumulation: int = 1) -> None:
    """Refuse rows that cannot be shared out evenly among ranks and pieces of a step.

    Raises:
        RowsError: `rows` is no multiple of world size times accumulation; lists what would be.
    """
    if world_size < 1 or accumulation < 1:
        raise RowsError(
            f"World size {world_size} and trainer.accumulation = {accumulation} must be above 0."
        )
    pieces = world_size * accumulation
    if rows % pieces == 0:
        return
    fitting = [n for n in range(1, rows + 1) if rows % n == 0]
    below = rows // pieces * pieces
    near = f"{below} or {below + pieces}" if below else f"{pieces}"
    raise RowsError(
        f"rows.rows = {rows} cannot be shared out evenly among {world_size} workers with "
        f"trainer.accumulation = {accumulation} ({pieces} equal shares). Set rows.rows to {near}, "
        "or choose workers and accumulation whose product is one of "
        f"{', '.join(str(n) for n in fitting)}."
    )


def rows_of_rank(rows: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """The rows [lo, hi) of a rank.

    Raises:
        RowsError: The rows cannot be shared out evenly, or there is no such rank.
    """
    check_shares(rows, world_size=world_size)
    if not 0 <= rank < world_size:
        raise RowsError(f"Rank {rank} is not one of 0 .. {world_size - 1}.")
    share = rows // world_size
    return rank * share, (rank + 1) * share
