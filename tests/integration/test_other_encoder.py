"""The ids of a store are those of sentencepiece's own command-line encoder."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.build import build_store
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer

ROOT = Path(__file__).parents[2]
SPM_ENCODE = shutil.which("spm_encode")
ODD = [
    "  two  blanks ",
    "\ttab\r",
    "a\u2028b",
    "\ufeffmark",
    "e\u0301 \U0001f469\u200d",
    "\uff21 \ufb01 \u2026",
    "</s>",
]


@pytest.mark.skipif(
    SPM_ENCODE is None, reason="no spm_encode here (Debian: apt-get install sentencepiece)"
)
@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_the_ids_written_are_those_of_the_command_line_encoder(
    tmp_path: Path, model_type: str
) -> None:
    texts = [
        json.loads(line)["text"]
        for line in (ROOT / "jobs/corpus/definitions.jsonl").read_bytes().split(b"\n")[:400]
        if line
    ]
    model = tmp_path / "a.model"
    model.write_bytes(train_tokenizer(texts, vocab_size=1_000, model_type=model_type))
    # it reads a document a line, so these are documents of one line
    lines = [line for text in texts for line in text.split("\n") if line] + ODD
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in lines))
    build_store(
        [str(tmp_path / "a.jsonl")],
        tokenizer=str(model),
        out=str(tmp_path / "store"),
        settings=BuildSettings(task_bytes=20_000),
    )
    said = subprocess.run(
        [str(SPM_ENCODE), f"--model={model}", "--output_format=id"],
        input="".join(line + "\n" for line in lines).encode(),
        capture_output=True,
        check=True,
    ).stdout.decode()
    store = Store.open(str(tmp_path / "store"))
    assert store.manifest.documents == len(lines) > 1_000
    wanted = [[int(number) for number in line.split()] for line in said.splitlines()]
    assert [store.read(i)[:-1].tolist() for i in range(len(lines))] == wanted
