"""Which documents of a store repeat the text of an earlier one, and the drop list that says so."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.part import Part

DROPPED = 255  # in the place of a split: in neither


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """One document that is left out: it stays in its part, and no split holds it."""

    doc_id: int
    uid: str
    source: str
    record: int
    same_as: int  # doc_id of the first with this text


class Repeats:
    """Finds documents whose text stood before, part after part in store order.

    Equal texts have equal ids, so no text is read. In memory is a hash of every text that stood
    first: about 130 bytes each, with the dictionary that it is found by.

    Attributes:
        found: The documents that repeat one, in store order.
    """

    def __init__(self) -> None:
        self.found: list[Dropped] = []
        self._first: dict[bytes, int] = {}
        self._documents = 0

    def add(self, part: Part) -> None:
        """Look at the next part."""
        for row in range(part.num_documents):
            doc_id = self._documents + row
            digest = hashlib.blake2b(part.tokens(row).data, digest_size=16).digest()
            same_as = self._first.setdefault(digest, doc_id)
            if same_as != doc_id:
                self.found.append(
                    Dropped(
                        doc_id=doc_id,
                        uid=part.value("uid", row),
                        source=part.value("source", row),
                        record=part.value("record", row),
                        same_as=same_as,
                    )
                )
        self._documents += part.num_documents


def without(splits: npt.NDArray[np.uint8], dropped: Sequence[Dropped]) -> npt.NDArray[np.uint8]:
    """(documents,) splits with `DROPPED` where a document is left out."""
    marked = splits.copy()
    marked[[entry.doc_id for entry in dropped]] = DROPPED
    return marked


def drop_list(dropped: Sequence[Dropped]) -> bytes:
    """The drop list's file, a JSON object a line."""
    lines = (
        {name: getattr(entry, name) for name in ("doc_id", "record", "same_as", "source", "uid")}
        for entry in dropped
    )
    return b"".join((json.dumps(line, ensure_ascii=False) + "\n").encode() for line in lines)
