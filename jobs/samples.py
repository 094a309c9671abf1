"""Text that a trained run writes: held-out documents begun by their authors, gone on with by it."""

import json
from typing import Any

import numpy as np

from jobs.track import Track
from model.generate import Sampling
from pipeline.files import write_whole
from pipeline.store import Store
from trainer.checkpoint import newest_of
from trainer.load import best_device, load_model
from trainer.run_folder import RunFolder
from trainer.writing import write

PROMPTS = 3
PROMPT_CHARS = 120
TOKENS = 120


def write_samples(folder: RunFolder, store: Store, tracked: Track) -> list[dict[str, Any]]:
    """Let the newest checkpoint go on with a few held-out documents; keep and track the texts.

    Returns:
        For each its document, the prompt and the text; none where nothing was held out.
    """
    checkpoint, _ = newest_of(folder, folder.attempts())
    ids = store.doc_ids("validation")
    if checkpoint is None or not len(ids):
        return []
    loaded = load_model(checkpoint, device=best_device())
    if loaded.model.config.memory == 0:
        return []
    longest = ids[np.argsort(-store.num_tokens("validation"), kind="stable")[:PROMPTS]].tolist()
    prompts = [_beginning(store.text(doc_id)) for doc_id in longest]
    texts = ["" for _ in prompts]
    sampling = Sampling(temperature=0.8, top_p=0.95, seed=loaded.step)
    for news in write(
        loaded.model, store.tokenizer(), prompts, max_tokens=TOKENS, sampling=sampling
    ):
        texts = [text + new for text, new in zip(texts, news, strict=True)]
    rows = [
        {"document": store.uid(doc_id), "prompt": prompt, "text": text}
        for doc_id, prompt, text in zip(longest, prompts, texts, strict=True)
    ]
    path = folder.path / "samples" / f"step_{loaded.step:08d}.json"
    path.parent.mkdir(exist_ok=True)
    write_whole(str(path), json.dumps(rows, indent=1, ensure_ascii=False).encode())
    folder.put_up(path)
    tracked.samples(rows, step=loaded.step)
    return rows


def _beginning(text: str) -> str:
    """The first words of a text, cut where a word ends."""
    cut = text[:PROMPT_CHARS]
    return cut[: cut.rfind(" ")] if " " in cut else cut
