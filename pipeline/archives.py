"""Packed bytes -> the bytes inside, with damage told apart from the end."""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from pipeline.errors import DataError

Packing = Literal["plain", "gz", "zst", "bz2", "xz"]

_MAGIC: dict[bytes, Packing] = {
    b"\x1f\x8b\x08": "gz",
    b"\x28\xb5\x2f\xfd": "zst",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
}


class DamagedArchiveError(Exception):
    """An archive is cut short or broken; what came out before it stands."""


def packing_of(head: bytes) -> Packing:
    """How a file is packed, by its first bytes; its name is not asked."""
    for magic, packing in _MAGIC.items():
        if head.startswith(magic):
            return packing
    return "plain"


def unpack(chunks: Iterable[bytes], packing: Packing) -> Iterator[bytes]:
    """The bytes inside, piece by piece, over as many members (frames) as there are.

    The decompressor of each kind has the same three names, so one loop serves all. `eof` is asked
    at the end because none of them complains by itself when the file just stops.

    Raises:
        DamagedArchiveError: After all that could be read has been given.
    """
    if packing == "plain":
        yield from chunks
        return
    start, damage = _opener(packing)
    member: Any = None
    members = 0
    for chunk in chunks:
        rest = chunk
        while rest:
            if member is None:
                rest = rest.lstrip(b"\0") if members else rest  # padding between members
                if not rest:
                    break
                member = start()
                members += 1
            try:
                data = member.decompress(rest)
            except damage as error:
                raise DamagedArchiveError(f"{packing}: {error}") from error
            if data:
                yield data
            rest, member = (member.unused_data, None) if member.eof else (b"", member)
    if member is not None:
        raise DamagedArchiveError(f"{packing}: cut short before its end")


def _opener(packing: Packing) -> tuple[Callable[[], Any], type[Exception]]:
    """What starts a member, and what it raises over broken bytes."""
    if packing == "gz":
        return lambda: zlib.decompressobj(wbits=31), zlib.error
    if packing == "bz2":
        return bz2.BZ2Decompressor, OSError
    if packing == "xz":
        return lzma.LZMADecompressor, lzma.LZMAError
    try:
        import zstandard
    except ImportError as error:
        raise DataError(
            "A file is packed with zstd, and the package zstandard is not installed. "
            "Install it (pip install zstandard) or unpack the file."
        ) from error
    zstd = zstandard.ZstdDecompressor(max_window_size=2**31)
    return zstd.decompressobj, zstandard.ZstdError
