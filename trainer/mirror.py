"""The copy on this machine of a folder that lies on an object store: files in, files out.

The store is the truth. It knows no rename and no append, and what reads a run wants files; so a
process keeps a copy of its own in the system's temp folder. Small files are brought when somebody
asks how things stand, the tensors of a checkpoint when it is read, and what was written here is put
up file by file, each whole. Nothing remembers a listing: other processes write there too.
"""

import atexit
import threading
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pipeline.errors import DataError
from pipeline.files import TEMPORARY, filesystem
from pipeline.steady import insist
from trainer.temp_folder import make_folder, remove_folder

AT_ONCE = 16  # small files brought at a time
LARGE = ".safetensors"
T = TypeVar("T")

Stamp = tuple[int, str]  # bytes, and what changes when they do


class Mirror:
    """A folder at `url` and its copy in `path`; names are relative to both."""

    def __init__(self, url: str) -> None:
        """Begin with an empty copy, which goes when this process ends."""
        self.url = url.rstrip("/")
        self._system, root = filesystem(self.url)
        self._root = root.rstrip("/")
        temp = make_folder()
        atexit.register(remove_folder, temp)
        self.path = Path(temp).resolve() / (self._root.rpartition("/")[2] or "run")
        self.path.mkdir()
        self._known: dict[str, Stamp] = {}  # what is here, as it was there
        self._lock = threading.RLock()

    def files(self, under: str = "") -> dict[str, Stamp]:
        """Every file there below the folder `under`, by name.

        Raises:
            DataError: A name leads out of the folder: an object store allows that, a disk would
                have it written elsewhere.
        """
        place = self._place(under) if under else self._root
        told = self._insist(lambda: self._system.find(place, detail=True), under)
        # A name with a slash at its end is no file: consoles leave it where they made a folder.
        found = {key: info for key, info in told.items() if not key.endswith("/")}
        for key in found:
            if {"", ".", ".."} & set(key.removeprefix(f"{place}/").split("/")):
                raise DataError(
                    f"{self.url} holds {key!r}, a name that leads out of it: `longrow` wrote no "
                    "such file. Do not trust this folder."
                )
        return {
            key[len(self._root) + 1 :]: _stamp(info)
            for key, info in found.items()
            if info["type"] == "file" and key.startswith(f"{place}/")
        }

    def refresh(
        self, under: str = "", *, leave: Callable[[str, Container[str]], bool]
    ) -> dict[str, Stamp]:
        """Bring what is new there, and let go of what is gone there.

        Args:
            under: Of this folder alone.
            leave: Whether a file stays there, of those that were found.

        Returns:
            What was found, as `files`.
        """
        with self._lock:
            found = self.files(under)
            for name in [known for known in self._known if known not in found]:
                if not under or name.startswith(f"{under}/"):
                    self.forget(name)
            self._bring({name: stamp for name, stamp in found.items() if not leave(name, found)})
            return found

    def bring(self, under: str) -> None:
        """Bring every file of the folder `under`."""
        with self._lock:
            self._bring(self.files(under))

    def read(self, name: str) -> bytes | None:
        """The file's content as it is there now; None if it is missing."""
        try:
            return self._insist(lambda: bytes(self._system.cat_file(self._place(name))), name)
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        """Whether the file is there now."""
        return bool(self._insist(lambda: self._system.exists(self._place(name)), name))

    def modified(self, name: str) -> float | None:
        """When it was put there, by the store's clock, in seconds since 1970; None if missing."""
        try:
            told = self._insist(lambda: self._system.modified(self._place(name)), name)
        except FileNotFoundError:
            return None
        return float(told.timestamp())

    def put(self, name: str, source: Path | None = None) -> None:
        """Put the copy, or `source`, up under `name`.

        Raises:
            OSError: The store refused it, several times.
        """
        file = str(source or self.path / name)
        self._insist(lambda: self._system.put_file(file, self._place(name)), name)
        if source is None:
            with self._lock:
                self._known[name] = (-1, "")  # it is there; as what is not known

    def write(self, name: str, data: bytes) -> None:
        """Write a file there."""
        self._insist(lambda: self._system.pipe_file(self._place(name), data), name)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file where none is; False where there is one.

        S3 itself refuses the second of two writers (If-None-Match). Where a store ignores the wish,
        the last of them wins, and the others see it when they read the file again.
        """
        place = self._place(name)
        if self.exists(name):
            return False

        def act() -> bool:
            try:
                with suppress(FileExistsError):
                    self._system.pipe_file(place, data, mode="create")
            except Exception as error:
                if "PreconditionFailed" not in str(error) and "412" not in str(error):
                    raise
            # Of the same bytes it is ours: then the answer to an earlier try got lost.
            return bool(self._system.cat_file(place) == data)

        return self._insist(act, name)

    def remove(self, name: str) -> None:
        """Remove a file there and here; a missing one is fine."""
        place = self._place(name)
        with suppress(FileNotFoundError):
            self._insist(lambda: self._system.rm_file(place), name)
        self.forget(name)

    def remove_all(self, under: str = "", *, first: str = "") -> None:
        """Remove the files of a folder there and here, `first` before all others."""
        names = sorted(self.files(under), key=lambda name: (not first or name != first, name))
        for name in names:
            self.remove(name)

    def forget(self, name: str) -> None:
        """Remove a file of the copy alone, and the folders that are empty then."""
        with self._lock:
            self._known.pop(name, None)
            path = self.path / name
            path.unlink(missing_ok=True)
            parent = path.parent
            while parent.parent != self.path and parent != self.path and parent.is_dir():
                if any(parent.iterdir()):
                    break
                parent.rmdir()
                parent = parent.parent

    def _bring(self, wanted: dict[str, Stamp]) -> None:
        stale = [name for name, stamp in wanted.items() if self._known.get(name) != stamp]
        if not stale:
            return
        with ThreadPoolExecutor(min(AT_ONCE, len(stale))) as pool:
            for name, came in zip(stale, pool.map(self._fetch, stale), strict=True):
                if came:
                    self._known[name] = wanted[name]

    def _fetch(self, name: str) -> bool:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_name(f"{TEMPORARY}{path.name}")
        try:
            self._insist(lambda: self._system.get_file(self._place(name), str(half)), name)
            half.replace(path)
        except FileNotFoundError:
            return False  # it was removed at this moment
        finally:
            half.unlink(missing_ok=True)
        return True

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _insist(self, call: Callable[[], T], name: str) -> T:
        """What `call` gives, tried again a few times; what does not pass is an OSError."""
        return insist(
            call, failed=lambda why: OSError(f"{self.url}/{name} cannot be reached: {why}")
        )


def names_in(names: Iterable[str], folder: str) -> set[str]:
    """The names directly in `folder` of those that lead through it."""
    return {
        name.removeprefix(f"{folder}/").partition("/")[0]
        for name in names
        if name.startswith(f"{folder}/")
    }


def _stamp(info: dict[str, object]) -> Stamp:
    """Bytes, and the first that is there of what stores tell of a version."""
    told = (str(info[key]) for key in ("ETag", "etag", "LastModified", "created") if key in info)
    return int(str(info["size"])), next(told, "")
