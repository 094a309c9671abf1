"""A remote file system for tests: local files behind `slow://`, with delays and faults, counted."""

import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem


class SlowFiles(LocalFileSystem):
    """Local files under another scheme.

    Attributes:
        opened: Paths that were opened for reading, in order.
        delay_s: What each opening of a part takes.
        before_open: Called with the path before each opening of a part; may raise.
    """

    protocol = "slow"
    cachable = False
    opened: ClassVar[list[str]] = []
    delay_s = 0.0
    before_open: Callable[[str], None] = staticmethod(lambda _: None)
    _lock = threading.Lock()

    @classmethod
    def reset(cls, delay_s: float = 0.0) -> None:
        """Begin anew: nothing counted, no faults."""
        cls.opened, cls.delay_s, cls.before_open = [], delay_s, staticmethod(lambda _: None)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("slow://"))

    def _open(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, path: str, mode: str = "rb", **options: Any
    ) -> Any:
        if "r" in mode and path.endswith(".arrow") and "/parts/" in path:
            with self._lock:
                self.opened.append(path)
            self.before_open(path)
            time.sleep(self.delay_s)
        return super()._open(path, mode, **options)


def register() -> None:
    """Let every URL that begins with slow:// lead here."""
    fsspec.register_implementation("slow", SlowFiles, clobber=True)
