"""Texts -> rows of a part: tokens, sizes and split of each document, many texts at a time.

The encoder's tables fill the caches of a core. Whatever else touches a text drives them out, so
all texts of a batch are encoded in one go: a build is a tenth faster than text by text.
"""

import hashlib
import queue
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.corpus import Document
from pipeline.errors import DataError
from pipeline.part import Encoded
from pipeline.pieces import Piece, cut_text
from pipeline.settings import BuildSettings
from pipeline.tokenizer import Ids, Tokenizer

BATCH_CHARS = 1 << 20  # of text that is encoded in one go
WATCHED_CHARS = 1 << 16  # of a text; a shorter one can not take minutes
_TAB, _CONTROLS, _SPACE = np.uint8(9), np.uint8(5), np.uint8(32)  # tab, LF, VT, FF, CR; blank


def encode_documents(
    documents: Sequence[Document], tokenizer: Tokenizer, settings: BuildSettings
) -> list[list[Encoded]]:
    """For each text its document, or those it was cut into.

    A piece is named uid#1, uid#2 ...; source and record are those of the text.

    Raises:
        DataError: A text took longer than settings.document_timeout_s; it is named.
    """
    short = [document.text for document in documents if len(document.text) < WATCHED_CHARS]
    encoded = iter(tokenizer.encode_all(short))
    found = [
        next(encoded) if len(document.text) < WATCHED_CHARS else (document.text.encode(), None)
        for document in documents
    ]
    most = settings.max_document_tokens
    words = count_words([data for data, _ in found])
    return [
        [_row(document, data, ids, num_words, settings)]
        if ids is not None and (not most or len(ids) <= most)
        else _cut(document, data, tokenizer, settings)
        for document, (data, ids), num_words in zip(documents, found, words, strict=True)
    ]


def _row(
    document: Document, data: bytes, ids: Ids, num_words: int, settings: BuildSettings
) -> Encoded:
    return Encoded(
        uid=document.uid,
        source=document.source,
        record=document.record,
        split=split_of(data, held_out=settings.held_out),
        num_bytes=len(data),
        num_chars=len(document.text),
        num_words=num_words,
        tokens=ids,
    )


def _cut(
    document: Document, data: bytes, tokenizer: Tokenizer, settings: BuildSettings
) -> list[Encoded]:
    """A text that may take long, or be too long for one document: watched, and cut if it is."""
    pieces = _watched(document, data, tokenizer, settings)
    words = count_words([piece for piece, _ in pieces])
    if len(pieces) == 1:
        return [_row(document, data, pieces[0][1], words[0], settings)]
    return [
        _row(
            replace(document, uid=f"{document.uid}#{number}", text=piece.decode()),
            piece,
            ids,
            num_words,
            settings,
        )
        for number, ((piece, ids), num_words) in enumerate(zip(pieces, words, strict=True), start=1)
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
    letters = np.frombuffer(b" ".join([b"", *texts]), dtype=np.uint8)
    blank = (letters - _TAB) < _CONTROLS  # below _TAB it wraps around
    blank |= letters == _SPACE
    begins = blank[:-1] > blank[1:]
    at = 0
    counts: list[int] = []
    for text in texts:
        counts.append(int(np.count_nonzero(begins[at : at + len(text)])))
        at += len(text) + 1
    return counts
