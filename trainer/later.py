"""What a run writes and can do without: where the disk refuses, it is told and tried again.

An anchor, the scores of an evaluation, the list of those that the clock placed: none is worth an
attempt. What a resume relies on (metrics.jsonl, checkpoints) goes other ways: see metric_lines.py
and saver.py.
"""

from collections.abc import Callable


class Later:
    """Writes of one rank that may wait; `note` takes sentences for a person."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._waiting: dict[str, Callable[[], None]] = {}

    def write(self, name: str, act: Callable[[], None]) -> None:
        """Do `act`, or keep it for `again` if the disk refuses.

        Args:
            name: The file, for a person; what waits under the same name is not written any more.
            act: Writes it, from values that do not change.

        Raises:
            OvertakenError: A later attempt owns the run, where `act` asks.
        """
        first = not self._waiting
        try:
            act()
        except OSError as error:
            self._waiting[name] = act
            if first:
                self._note(
                    f"{name} cannot be written ({error}). Training goes on; it is kept and written "
                    "later, at the next checkpoint."
                )
        else:
            self._waiting.pop(name, None)

    def again(self) -> None:
        """Try what waits, oldest first, until the disk refuses one: that goes behind the others.

        It may be the only one that is refused. A store that does not answer is asked once.
        """
        for name, act in list(self._waiting.items()):
            try:
                act()
            except OSError:
                self._waiting[name] = self._waiting.pop(name)
                return
            del self._waiting[name]

    def close(self) -> None:
        """Name what was never written."""
        if self._waiting:
            self._note(
                f"The disk refused to the end, and these are missing: {', '.join(self._waiting)}. "
                "The run does not need them; make room before it goes on."
            )
