"""Whole files in, whole files out, wherever they lie: the only place that knows fsspec.

A path without a scheme is local and never meets fsspec; `s3://`, `memory://` and the like do.
"""

import errno
import hashlib
import io
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pipeline.credentials import INSTEAD, credential_in
from pipeline.errors import DataError
from pipeline.steady import Steady, patiently

CHUNK = 1 << 20  # bytes read at a time
TEMPORARY = ".longrow-"  # every half-written file of ours begins so
_RUNS = {"reference", "dask"}  # templates that are rendered, pickles that are sent
_SAME = (  # by what the file systems tell one content of a file from another, those that say it
    "size", "ETag", "etag", "mtime", "created", "updated", "LastModified", "last_modified",
    "Last-Modified", "generation", "md5Hash", "Content-MD5", "blob_id",
)  # fmt: skip


def local_path(url: str) -> Path | None:
    """Where `url` lies on this machine, or None if it is remote."""
    if url.startswith("file://"):
        return Path(url.removeprefix("file://"))
    return None if "://" in url else Path(url)


def join(url: str, *names: str) -> str:
    """`url` with more names below it."""
    return "/".join([url.rstrip("/") or "/", *names]) if names else url


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a remote `url`, and its path there.

    It remembers no listing: other processes write into the folders that this one has listed.

    Raises:
        DataError: Nobody here knows the scheme, its package is not installed, or the address holds
            a credential or is of a kind that could run what a stranger wrote.
    """
    if found := credential_in(url):
        raise DataError(
            f"An address holds {found}: it would stand in logs and in what is written. {INSTEAD}"
        )
    if runs := _RUNS & {link.partition("://")[0] for link in url.split("::")}:
        raise DataError(
            f"{runs.pop()}:// is refused: such an address can run what a stranger wrote. Give the "
            "address of the files themselves."
        )
    from fsspec.core import url_to_fs  # slow, and needed for remote files only

    try:
        try:
            return url_to_fs(url, use_listings_cache=False)
        except TypeError:  # sftp:// and gist:// know no such setting, and keep no listing
            return url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise DataError(
            f"{url} cannot be reached: {error}. Install the fsspec package of that scheme "
            "(s3fs for s3://, gcsfs for gs://) or give a local path."
        ) from error


def open_binary(url: str, *, at: int = 0) -> IO[bytes]:
    """Open for reading from byte `at` on; the caller closes it. A remote file is read patiently.

    A web server that gives no ranges is read from the beginning, and what lies before is dropped.
    """
    path = local_path(url)
    if path is not None:
        file = path.open("rb")
        file.seek(at)
        return file
    system, name = filesystem(url)
    info = patiently(lambda: system.info(name), url=url, what="does not answer")
    size = info.get("size")
    opened = False

    def open_at(place: int) -> IO[bytes]:
        nonlocal opened
        if opened and _stamp(system.info(name)) != _stamp(info):
            raise DataError(
                f"{url} was replaced while it was read. Let it be written to its end first, then "
                "run this again."
            )
        opened = True
        if url.startswith(("http://", "https://")) and not info.get("partial"):
            file = system.open(name, "rb", block_size=0)  # a stream: it cannot seek
            while place and (dropped := file.read(min(place, CHUNK))):
                place -= len(dropped)
            return file
        file = system.open(name, "rb")
        file.seek(place)
        return file

    steady = Steady(open_at, url=url, size=size)
    if at:
        steady.seek(at)
    return io.BufferedReader(steady, buffer_size=CHUNK)


def read_bytes(url: str) -> bytes:
    """A file's content."""
    with open_binary(url) as file:
        return file.read()


def exists(url: str) -> bool:
    """Whether a file or folder is there."""
    path = local_path(url)
    if path is not None:
        return path.exists()
    system, name = filesystem(url)
    return bool(system.exists(name))


def size_of(url: str) -> int | None:
    """Bytes of a file; None if it is missing."""
    path = local_path(url)
    try:
        if path is not None:
            return path.stat().st_size
        system, name = filesystem(url)
        return int(system.info(name)["size"])
    except FileNotFoundError:
        return None


def stamp_of(url: str) -> tuple[Any, ...] | None:
    """What another content under the same name would change, as far as is known; None: no file."""
    path = local_path(url)
    try:
        if path is not None:
            found = path.stat()
            return found.st_size, found.st_mtime_ns, found.st_ino
        system, name = filesystem(url)
        return _stamp(patiently(lambda: system.info(name), url=url, what="does not answer"))
    except FileNotFoundError:
        return None


def _stamp(info: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(info.get(name) for name in _SAME)


def list_folder(url: str) -> dict[str, int | None]:
    """Names directly in a folder with their sizes in bytes; None for a folder; {} if missing."""
    path = local_path(url)
    if path is not None:
        found: dict[str, int | None] = {}
        try:
            listed = os.scandir(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        with listed as entries:
            for entry in entries:
                try:
                    found[entry.name] = None if entry.is_dir() else entry.stat().st_size
                except FileNotFoundError:  # another process has just renamed it
                    if entry.is_symlink():  # or it is a link to nothing, which is there
                        found[entry.name] = 0
        return found
    system, name = filesystem(url)
    try:
        listed = system.ls(name, detail=True)
    except FileNotFoundError:
        return {}
    return {
        entry["name"].rstrip("/").rsplit("/", 1)[-1]: None
        if entry["type"] == "directory"
        else entry["size"]
        for entry in listed
    }


def sha256_of(url: str) -> str:
    """The sha256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with open_binary(url) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def make_folder(path: Path) -> None:
    """Make a local folder and those above it; one that is there is fine.

    Raises:
        OSError: It cannot be; /proc and the like, which bear no new names, say "no such file".
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise PermissionError(errno.EPERM, "No folder can be made there", str(path)) from error


def remove(url: str) -> None:
    """Remove a file; a missing one is fine."""
    path = local_path(url)
    if path is not None:
        path.unlink(missing_ok=True)
        return
    system, name = filesystem(url)
    with suppress(FileNotFoundError):
        system.rm_file(name)


def remove_folder(url: str) -> None:
    """Remove a folder and the files in it; a missing one is fine."""
    for name in list_folder(url):
        remove(join(url, name))
    if (path := local_path(url)) is not None:
        with suppress(FileNotFoundError):
            path.rmdir()


def remove_temporary(folder: str) -> None:
    """Sweep what killed writers left in a local folder (object stores keep no halves)."""
    if local_path(folder) is not None:
        for name in list_folder(folder):
            if is_temporary(name):
                remove(join(folder, name))


def is_temporary(name: str) -> bool:
    """Whether a name is that of a file half written."""
    return name.startswith(TEMPORARY)


def write_whole(url: str, data: bytes) -> None:
    """Write `data` so that a reader sees the old file or the new one, never a part of it.

    Raises:
        OSError: The disk or the store refused; the file is as it was.
    """
    with writing_whole(url) as file:
        file.write(data)


@contextmanager
def writing_whole(url: str) -> Iterator[IO[bytes]]:
    """A file to write in pieces that appears under its name only when the block ends well.

    Locally: a temporary file beside it, fsync, rename, fsync of the folder. On object stores: the
    whole is gathered in a temporary file here and put at once, for they know no rename.
    """
    path = local_path(url)
    if path is None:
        system, name = filesystem(url)
        with tempfile.NamedTemporaryFile(prefix=TEMPORARY) as spool:
            yield spool.file
            spool.flush()
            system.makedirs(name.rsplit("/", 1)[0], exist_ok=True)
            system.put_file(spool.name, name)
        return
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    make_folder(path.parent)
    half = path.with_name(f"{TEMPORARY}{path.name[:64]}-{uuid.uuid4().hex[:12]}")
    try:
        with half.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError as error:
        if error.filename is None:  # a write does not say where
            error.filename = str(path)
        raise
    finally:
        half.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else the rename itself may not survive a power cut
    finally:
        os.close(folder)
