"""Texts -> rows of a part: tokens, sizes and split of each document, many texts at a time.

The encoder's tables fill the caches of a core. Whatever else touches a text drives them out, so
all texts of a batch are encoded in one go: a build is a tenth faster than text by text.
"""

import hashlib
import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipeline.corpus import Document
from pipeline.errors import DataError
from pipeline.part import Encoded
from pipeline.pieces import Piece, cut_text
from pipeline.settings import BuildSettings
from pipeline.tokenizer import Ids, Tokenizer

BATCH_CHARS = 1 << 21  # of text that is encoded in one go
WATCHED_BYTES = 1 << 20  # of a text; a shorter one can not take minutes, and a thread costs 10 %
HOT = 32  # texts that are looked at together
_TAB, _CONTROLS, _SPACE = np.uint8(9), np.uint8(5), np.uint8(32)  # tab, LF, VT, FF, CR; blank


class Ready(NamedTuple):
    """A text in UTF-8 and all that is said of it but its tokens."""

    document: Document
    data: bytes
    split: int
    num_words: int


def prepare_texts(documents: Sequence[Document], *, held_out: float) -> list[Ready]:
    """Look at texts while they are fresh in a core's cache: best some `HOT` at a time."""
    data = [document.text.encode() for document in documents]
    splits = [split_of(text, held_out=held_out) for text in data]
    return list(map(Ready, documents, data, splits, count_words(data)))


def encode_documents(
    texts: Sequence[Ready], tokenizer: Tokenizer, settings: BuildSettings
) -> list[list[Encoded]]:
    """For each text its document, or those it was cut into.

    A piece is named uid#1, uid#2 ...; source and record are those of the text.

    Raises:
        DataError: A text took longer than settings.document_timeout_s; it is named.
    """
    most = settings.max_document_tokens
    short = [i for i, ready in enumerate(texts) if len(ready.data) < WATCHED_BYTES]
    found = tokenizer.encode_all([texts[i].data for i in short])
    ids: dict[int, Ids] = dict(zip(short, found, strict=True))
    return [
        [_row(ready, ids[i])]
        if i in ids and (not most or len(ids[i]) <= most)
        else _cut(ready, tokenizer, settings)
        for i, ready in enumerate(texts)
    ]


def _row(ready: Ready, ids: Ids) -> Encoded:
    document, data, split, num_words = ready
    return Encoded(
        document.uid,
        document.source,
        document.record,
        split,
        len(data),
        len(document.text),
        num_words,
        ids,
    )


def _cut(ready: Ready, tokenizer: Tokenizer, settings: BuildSettings) -> list[Encoded]:
    """A text that may take long, or be too long for one document: watched, and cut if it is."""
    pieces = _watched(ready.document, ready.data, tokenizer, settings)
    if len(pieces) == 1:
        return [_row(ready, pieces[0][1])]
    cut = [
        replace(ready.document, uid=f"{ready.document.uid}#{number}", text=data.decode())
        for number, (data, _) in enumerate(pieces, start=1)
    ]
    return [
        _row(piece, ids)
        for piece, (_, ids) in zip(
            prepare_texts(cut, held_out=settings.held_out), pieces, strict=True
        )
    ]


def _watched(
    document: Document, data: bytes, tokenizer: Tokenizer, settings: BuildSettings
) -> list[Piece]:
    answer: queue.SimpleQueue[list[Piece] | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put(cut_text(data, tokenizer, max_tokens=settings.max_document_tokens))
        except Exception as error:  # noqa: BLE001 (raised again where it is waited for)
            answer.put(error)

    threading.Thread(target=work, daemon=True).start()  # sentencepiece can not be interrupted
    try:
        found = answer.get(timeout=settings.document_timeout_s)
    except queue.Empty as error:
        raise DataError(
            f"{document.source}, record {document.record:,} (id {document.uid!r}, {len(data):,} "
            f"bytes): tokenizing it takes longer than {settings.document_timeout_s:g} s. Leave it "
            f"out with --skip '{document.source}:{document.record}', or allow more with "
            "--document-timeout-s. What is built stays."
        ) from error
    if isinstance(found, Exception):
        raise found
    return found


def split_of(data: bytes, *, held_out: float) -> int:
    """0 (train) or 1 (validation) by the hash of a text, so that equal texts stay together."""
    if not held_out:
        return 0
    draw = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
    return int(draw < held_out * 2**64)


def count_words(texts: Sequence[bytes]) -> list[int]:
    """Of each text its runs of bytes that are no ASCII blanks.

    Equals `len(text.split())` at a small part of the time; `str.split` would hang on a Unicode
    table. All texts are looked at in one go: a call of numpy costs as much as a thousand bytes.
    """
    letters = np.frombuffer(b" ".join([b" ", *texts]), dtype=np.uint8)
    blank = (letters - _TAB) < _CONTROLS  # below _TAB it wraps around
    blank |= letters == _SPACE
    begins = blank[:-1] > blank[1:]
    at = 1
    counts: list[int] = []
    for text in texts:
        counts.append(int(np.count_nonzero(begins[at : at + len(text)])))
        at += len(text) + 1
    return counts
