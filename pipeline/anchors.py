"""Any step of a stream again, past or to come: from a state kept near it, and a walk from there."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.errors import DataError
from pipeline.layout import Layout, RowsError
from pipeline.lengths import Mixed, Source
from pipeline.rows import advance
from pipeline.rows_state import RowsState, initial_state

VERSION = 1
EVERY = 4096  # steps between two anchors: a walk from one takes seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Anchor:
    """A state, with all that is needed to go on from it.

    Attributes:
        store: What the rows read.
        store_fingerprint: Of that.
        layout: The rows.
        state: Where they stand.
    """

    store: str
    store_fingerprint: str
    layout: Layout
    state: RowsState

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "version": VERSION,
            "store": self.store,
            "store_fingerprint": self.store_fingerprint,
            "layout": asdict(self.layout),
            "rows": self.state.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Anchor":
        """Read back what `to_json` gave.

        Raises:
            DataError: It is not that.
        """
        try:
            if data["version"] != VERSION:
                raise DataError(
                    f"An anchor of version {data['version']!r} was found, this program reads "
                    f"version {VERSION}: use the longrow that wrote it."
                )
            return cls(
                store=str(data["store"]),
                store_fingerprint=str(data["store_fingerprint"]),
                layout=Layout(**data["layout"]),
                state=RowsState.from_json(data["rows"]),
            )
        except (KeyError, TypeError, RowsError) as error:
            raise DataError(
                f"A saved anchor cannot be used ({error!r}). The file was changed or is damaged: "
                "remove it, and the one before it is taken."
            ) from error


def first_anchor(layout: Layout, *, store: str, store_fingerprint: str, sources: int = 1) -> Anchor:
    """Before the first step of a run whose rows never changed."""
    return Anchor(
        store=store,
        store_fingerprint=store_fingerprint,
        layout=layout,
        state=initial_state(layout, sources),
    )


def at(anchor: Anchor, lengths: Source | Mixed, step: int) -> Anchor:
    """The same stream when `step` steps are done.

    Raises:
        RowsError: That is before the anchor.
        DataError: The documents are not those of the anchor.
    """
    steps = step - anchor.state.step
    if steps < 0:
        raise RowsError(
            f"Step {step} lies before {anchor.state.step}, the earliest that is known here."
        )
    return replace(anchor, state=advance(lengths, anchor.layout, anchor.state, steps))
