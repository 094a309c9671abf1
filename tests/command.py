"""A command of ours, called in this process as a shell would call it."""

from jobs.cli import longrow
from jobs.entry import Exit, Outcome, finish


def code_of(*words: str) -> Exit:
    """Its exit code; what it says goes where a process says it."""

    def work() -> Outcome:
        outcome = longrow.main(list(words), standalone_mode=False)
        return outcome if isinstance(outcome, Outcome) else Outcome()

    return finish(work, words)
