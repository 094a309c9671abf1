"""Texts -> rows of a part: tokens, sizes and split of each document, many texts at a time.

The encoder's tables fill the caches of a core. Whatever else touches a text drives them out, so
all texts of a batch are encoded in one go: a build is a tenth faster than text by text.
"""

import hashlib
import queue
import threading
from collections.abc import Sequence

import numpy as np

from pipeline.corpus import Document
from pipeline.errors import DataError
from pipeline.part import Encoded
from pipeline.pieces import Piece, cut_text
from pipeline.settings import BuildSettings
from pipeline.tokenizer import Ids, Tokenizer

BATCH_CHARS = 1 << 20  # of text that is encoded in one go
WATCHED_BYTES = 1 << 16  # of a text; a shorter one can not take minutes
_TAB, _CONTROLS, _SPACE = np.uint8(9), np.uint8(5), np.uint8(32)  # tab, LF, VT, FF, CR; blank


def encode_documents(
    documents: Sequence[Document], tokenizer: Tokenizer, settings: BuildSettings
) -> list[list[Encoded]]:
    """For each text its document, or those it was cut into.

    A piece is named uid#1, uid#2 ...; source and record are those of the text.

    Raises:
        DataError: A text took longer than settings.document_timeout_s; it is named.
    """
    texts = [document.text.encode() for document in documents]
    ids: list[Ids | None] = [None] * len(texts)
    short = [i for i, data in enumerate(texts) if len(data) < WATCHED_BYTES]
    for i, found in zip(short, tokenizer.encode_all([texts[i] for i in short]), strict=True):
        ids[i] = found
    return [
        _rows(document, _pieces(document, data, known, tokenizer, settings), settings)
        for document, data, known in zip(documents, texts, ids, strict=True)
    ]


def _pieces(
    document: Document, data: bytes, ids: Ids | None, tokenizer: Tokenizer, settings: BuildSettings
) -> list[Piece]:
    most = settings.max_document_tokens
    if ids is not None and (not most or len(ids) <= most):
        return [(data, ids)]
    answer: queue.SimpleQueue[list[Piece] | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put(cut_text(data, tokenizer, max_tokens=most))
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


def _rows(document: Document, pieces: list[Piece], settings: BuildSettings) -> list[Encoded]:
    whole = len(pieces) == 1
    return [
        Encoded(
            uid=document.uid if whole else f"{document.uid}#{number}",
            source=document.source,
            record=document.record,
            split=split_of(data, held_out=settings.held_out),
            num_bytes=len(data),
            num_chars=len(document.text) if whole else len(data.decode()),
            num_words=count_words(data),
            tokens=tokens,
        )
        for number, (data, tokens) in enumerate(pieces, start=1)
    ]


def split_of(data: bytes, *, held_out: float) -> int:
    """0 (train) or 1 (validation) by the hash of a text, so that equal texts stay together."""
    if not held_out:
        return 0
    draw = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
    return int(draw < held_out * 2**64)


def count_words(data: bytes) -> int:
    """Runs of bytes that are no ASCII blanks.

    Equals `len(data.split())` at a small part of the time; `str.split` would hang on a Unicode
    table.
    """
    if not data:
        return 0
    letters = np.frombuffer(data, dtype=np.uint8)
    blank = ((letters - _TAB) < _CONTROLS) | (letters == _SPACE)  # below _TAB it wraps around
    return int(np.count_nonzero(blank[:-1] > blank[1:])) + int(not blank[0])
