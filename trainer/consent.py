"""What all ranks agree on before they go on: to stop, to wait, to score, to fail together."""

import json
from collections.abc import Callable
from typing import TypeVar

from trainer.board import Reporter
from trainer.group import Group, Vote
from trainer.start import REPEATABLE, DoomedError, describe

T = TypeVar("T")


class Consent:
    """A rank's voice.

    An error that would meet another attempt again is kept until the next vote, where all ranks
    learn of it and raise it together. To raise it at once would leave the others waiting for this
    rank.
    """

    def __init__(self, group: Group, reporter: Reporter) -> None:
        self._group = group
        self._reporter = reporter
        self._error: str | None = None

    @property
    def failed(self) -> bool:
        """Whether this rank keeps an error."""
        return self._error is not None

    def guard(self, act: Callable[[], T]) -> T | None:
        """Do `act`; None if it met an error that is kept for the next vote."""
        try:
            return act()
        except tuple(REPEATABLE) as error:
            self._error = self._error or describe(error)
            return None

    def vote(self, *, waiting: bool = False, score: bool = False, targets: int = 0) -> Vote:
        """What the ranks say together; somebody may want to stop, or have failed."""
        mine = Vote(
            stop=bool(self._reporter.stop_reason()),
            waiting=waiting,
            failed=self.failed,
            score=score,
            targets=targets,
        )
        return self._group.vote(mine)

    def asked_to_stop(self) -> bool:
        """Whether to leave what all ranks are doing: somebody wants to stop, or has failed."""
        self._reporter.beat()
        said = self.vote()
        return said.stop > 0 or said.failed > 0

    def raise_together(self) -> None:
        """Raise, on all ranks, the error that the lowest of them keeps; nothing if none does.

        Raises:
            DoomedError: With that error.
        """
        first = self._group.first_error(self._error)
        if first is not None:
            raise DoomedError(*json.loads(first))
