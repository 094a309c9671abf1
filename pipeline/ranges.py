"""Stretches of a file, local or remote: what is asked for is fetched, and no byte around it."""

from dataclasses import dataclass
from typing import Any

from pipeline.errors import DataError
from pipeline.files import filesystem, local_path
from pipeline.steady import patiently


@dataclass(frozen=True, slots=True)
class Ranges:
    """A file that nobody writes to any more; `size` and `read_at` are those of pyarrow's files."""

    url: str
    size_bytes: int

    def size(self) -> int:
        """Bytes of the file."""
        return self.size_bytes

    def read_at(self, size: int, at: int) -> bytes:
        """`size` bytes from byte `at` on.

        Raises:
            DataError: The file is shorter, or its server does not answer.
        """
        data = self._read(size, at) if size > 0 else b""
        if size < 0 or len(data) != size:
            raise DataError(
                f"{self.url} gave {len(data):,} of the {size:,} bytes from byte {at:,} on. It was "
                "changed or is damaged: remove it and run `longrow build` again."
            )
        return data

    def _read(self, size: int, at: int) -> bytes:
        path = local_path(self.url)
        if path is not None:
            with path.open("rb") as file:
                file.seek(at)
                return file.read(size)
        system, name = filesystem(self.url)

        def fetch() -> Any:
            return system.cat_file(name, start=at, end=at + size)

        return patiently(fetch, url=self.url, what="cannot be read")
