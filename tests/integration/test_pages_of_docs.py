"""The commands of tutorial.md, loss-spike.md and recipes.md run as they stand, on small texts."""

import json
import random
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.command import code_of

DOCS = Path(__file__).parents[2] / "docs"
# The pages' sizes are for a laptop's hour; a variable shrinks what a file says, and these words.
SMALL = {
    "TRAINER__STEPS": "9",
    "ROWS__ROWS": "4",
    "ROWS__SEGMENT": "16",
    "MODEL__LAYERS": "1",
    "MODEL__WIDTH": "16",
    "MODEL__HEADS": "2",
    "MODEL__HEAD_WIDTH": "8",
    "MODEL__INNER_WIDTH": "16",
    "MODEL__MEMORY": "16",
    "EVALUATE__EVERY": "0",
    "CLUSTER__LAUNCHER": "local",
    "CLUSTER__WORKERS": "1",
    "TRACKING__URI": "off",
}
SMALLER = {
    "trainer.steps=12_000": "trainer.steps=11",
    "trainer.steps=11_000": "trainer.steps=13",
    "4096": "290",
    "0,64,128,256": "0,16",
    "0,16,32,48,64,80,96,112,128,192,256": "0,8,16",
    "64": "16",
    "1003854": "3400",
    "+1003855": "+3401",
    "1024": "100",
}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documents that the pages speak of."""
    folder = tmp_path_factory.mktemp("docs")
    draw = random.Random(7)
    words = ["row", "memory", "segment", "offset", "reset", "step", "document", "token"]
    (folder / "corpus").mkdir()
    lines = [
        json.dumps({"id": f"d{number}", "text": " ".join(draw.choices(words, k=60 + number))})
        for number in range(60)
    ]
    (folder / "corpus" / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "input.txt").write_text("To be, or not to be.\n" * 200, encoding="utf-8")
    shutil.copy(DOCS / "recipes" / "shakespeare.toml", folder)
    return folder


def run_block(kind: str, text: str) -> None:
    if kind == "toml":
        name = text.split("\n", 1)[0].removeprefix("# ")
        Path(name).write_text(text, encoding="utf-8")
        return
    for line in text.strip().replace("\\\n", " ").split("\n"):
        words = [SMALLER.get(word, word) for word in shlex.split(line)]
        if words[0] in ("head", "tail"):
            *cut, _, name = words  # the last two are "> FILE"
            with Path(name).open("wb") as file:
                subprocess.run(cut, stdout=file, check=True)
            continue
        if words[0] == "grep":  # finds none in a run that skipped none
            assert subprocess.run(words, check=False).returncode in {0, 1}, line
            continue
        assert words[0] == "longrow", line
        if words[1] == "build":
            words.append("--no-ray")
        assert code_of(*words[1:]) == 0, line


@pytest.mark.parametrize("page", ["tutorial.md", "loss-spike.md", "recipes.md"])
def test_every_command_of_the_page_runs(
    page: str, box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second page is about what the first one made; the third stands alone."""
    monkeypatch.chdir(box)
    for key, value in SMALL.items():
        monkeypatch.setenv(f"LONGROW__{key}", value)
    blocks = re.findall(
        r"^```(sh|toml)\n(.+?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert blocks
    for kind, text in blocks:
        run_block(kind, text)
