"""The corpus that comes with the project: real documents under licences named in README.md."""

from pathlib import Path

FILES = ("definitions.jsonl", "factbook.jsonl.gz", "plays.jsonl")


def shipped_files() -> tuple[str, ...]:
    """Paths of the shipped corpus, to be given to a build or to the training of a tokenizer."""
    return tuple(str(Path(__file__).with_name(name)) for name in FILES)
