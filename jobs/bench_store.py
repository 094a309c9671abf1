"""A store for a bench, of the corpus that is named, tokenized in this process."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.build import build_store
from pipeline.corpus import plan_tasks
from pipeline.files import write_whole
from pipeline.records import read_texts
from pipeline.settings import BuildSettings, TokenizerSettings
from pipeline.tokenizer import train_from_settings


def bench_store(
    inputs: Sequence[str], *, tokenizer: str, folder: Path, held_out: float = 0.05
) -> str:
    """Build a store in `folder`; give its path.

    Args:
        inputs: The corpus.
        tokenizer: File or URL; empty takes plain bytes, which need no training.
        folder: Where to build; there by now.
        held_out: Part of the documents for validation.
    """
    settings = BuildSettings(max_bad="100%", held_out=held_out)
    model = tokenizer or str(folder / "bytes.model")
    if not tokenizer:
        plan = plan_tasks(inputs, task_bytes=settings.task_bytes)
        wanted = TokenizerSettings(model_type="byte")
        write_whole(model, train_from_settings(read_texts(plan.tasks), wanted))
    out = str(folder / "store")
    build_store(inputs, tokenizer=model, out=out, settings=settings)
    return out
