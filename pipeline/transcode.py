"""Text in a named encoding -> UTF-8, and what is no text in it stays none."""

import codecs
from collections.abc import Iterator

from pipeline.lines import Chunks

_NO_TEXT = "longrow-no-text"
codecs.register_error(_NO_TEXT, lambda error: ("\ud800", getattr(error, "end", 0)))


def in_utf8(chunks: Chunks, encoding: str) -> Iterator[tuple[int, bytes]]:
    """The same text in UTF-8, its places counted there.

    Bytes that are no text in `encoding` become bytes that are none in UTF-8 either (half a
    surrogate pair): their record is rejected, and no other.
    """
    if encoding == "utf-8":
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)(_NO_TEXT)
    position = 0
    for piece in _decoded(chunks, decoder):
        data = piece.encode(errors="surrogatepass")
        if data:
            yield position, data
        position += len(data)


def _decoded(chunks: Chunks, decoder: codecs.IncrementalDecoder) -> Iterator[str]:
    for _, chunk in chunks:
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)
