"""A build that goes on beside the training that reads it: in a thread, by actors that step back."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from jobs.build import showing
from jobs.cluster import cores
from jobs.config import RunConfig
from jobs.drive import say
from jobs.entry import Exit, explain
from jobs.prepare import store_line
from jobs.progress import Progress
from pipeline.build_actor import build_store_with_actors
from pipeline.cache import PartCache
from pipeline.growing import GrowingStore
from pipeline.progress import BuildProgress
from pipeline.publish import Publisher

NICE = 19  # whatever cores the workers leave


class _EndedError(Exception):
    """The training has ended, and the build with it."""


class Beside:
    """The build of a run's store, while the `with` block lasts; what it committed stays.

    Attributes:
        store: What is there of it so far.
    """

    store: GrowingStore

    def __init__(self, config: RunConfig, inputs: Sequence[str], tokenizer: str) -> None:
        """Start nothing yet; Ray must be up."""
        self._config, self._inputs, self._tokenizer = config, inputs, tokenizer
        self._begun, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._build, name="build", daemon=True)

    def __enter__(self) -> Self:
        """Begin to build.

        Raises:
            DataError: The corpus, the tokenizer or the folder cannot be used.
        """
        self._thread.start()
        try:
            self._wait_until_begun()
            data = self._config.data
            cache = PartCache(data.cache, data.cache_bytes) if data.cache else None
            self.store = GrowingStore.open(data.store, cache)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def failure(self) -> str:
        """Why the build failed; empty as long as it has not."""
        return explain(self._error)[1] if self._error is not None else ""

    def exit_code(self) -> Exit:
        """What the failure of the build means to the one who typed the command."""
        return explain(self._error)[0] if self._error is not None else Exit.DONE

    def _wait_until_begun(self) -> None:
        while not self._begun.wait(0.1):  # and not without end: a signal must get through
            pass
        if self._error is not None:
            raise self._error

    def _end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _show(self, show: Callable[[BuildProgress], None], progress: BuildProgress) -> None:
        if self._ended.is_set():
            raise _EndedError
        show(progress)

    def _build(self) -> None:
        data = self._config.data
        try:
            with Progress("tokenizing", unit="bytes") as bar:
                report = build_store_with_actors(
                    self._inputs,
                    tokenizer=self._tokenizer,
                    out=data.store,
                    workers=data.workers or cores(),
                    settings=data.build(),
                    progress=partial(self._show, showing(bar)),
                    publisher=Publisher(data.store, begun=self._begun.set),
                    nice=NICE,
                )
            say(store_line(report, data.store))
        except _EndedError:
            say("The build of the store has ended with the training; the same command goes on.")
        except BaseException as error:  # noqa: BLE001 - raised where the training ends
            self._error = error
        finally:
            self._begun.set()
