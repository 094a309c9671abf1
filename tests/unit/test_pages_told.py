"""What the pages tell people to type would be understood, and what they name is there.

Commands, targets of make, keys of configs, TOML and links, of every page. Those of the tutorial, of
the loss spike and of the cluster are run besides, in test_pages_of_docs.py and test_submit.py.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator

import pytest

from jobs.cli import COMMANDS
from jobs.config import keys, read_config, sections
from tests.infra_files import ROOT
from tests.unit.test_infra_names import told
from trainer.errors import ConfigError

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "infra" / "README.md"])
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
OURS = re.compile(r"(longrow|mlflow|ray|make|python -m jobs\S*) ")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NUMBERS = ("L", "M", "N", "S")
FILES = {"toml", "json", "model"}  # what a name with a dot ends in that is no key


def commands(text: str) -> Iterator[str]:
    """Command lines of the blocks, prompts and comments taken off, and those within sentences."""
    for language, block in BLOCK.findall(text):
        if language in ("", "sh"):
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                yield line.removeprefix("$ ").partition("  #")[0].strip()
    for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text)):
        yield " ".join(span.split())


def fault(line: str) -> str:
    """What is wrong with a command line; a part of one, as a sentence has it, is none."""
    if line.startswith("make "):
        return "" if line.split()[1] in TARGETS else f"make knows no {line.split()[1]}"
    if " | " in line:  # a choice
        return ""
    words = [
        "1" if word in NUMBERS else word for word in shlex.split(line.replace("--set ...", ""))
    ]
    if words[0] == "longrow" and words[1] not in COMMANDS:
        return "" if words[1].isupper() or words[1] == "--help" else f"no command {words[1]}"
    wrong = told([word for word in words if word not in ("--help", "...")])
    return "" if wrong.startswith("Missing ") or "requires an argument" in wrong else wrong


def faults(text: str) -> Iterator[str]:
    """What a page tells that is not so."""
    for line in commands(text):
        if OURS.match(line) and (wrong := fault(line)):
            yield f"{line}: {wrong}"
    for key in re.findall(r"`(\w+\.\w+)(?: = [^`]+)?`", text):
        section, _, name = key.partition(".")
        if section in sections() and key not in keys() and name not in FILES:
            yield f"there is no key {key}"
    for language, block in BLOCK.findall(text):
        if language == "toml":
            read_config(base=tomllib.loads(block))


@pytest.mark.parametrize("page", TEXTS)
def test_what_a_page_tells_would_be_understood(page: str) -> None:
    assert list(faults(TEXTS[page])) == []


@pytest.mark.parametrize("page", TEXTS)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", TEXTS[page])
    folder = (ROOT / page).parent
    assert [link for link in links if not (folder / link).exists()] == []


@pytest.mark.parametrize(
    ("page", "right", "wrong", "told_of"),
    [
        ("README.md", "longrow build corpus/ --tokenizer", "longrow build corpus/ --tok", "--tok"),
        ("README.md", "longrow train run.toml --dry-run", "longrow train --dry", "--dry"),
        ("README.md", "make demo", "make dmeo", "make knows no dmeo"),
        ("README.md", "--set rows.shuffle=none", "--set rows.shufle=none", "no such key"),
        ("README.md", "`run.folder = ", "`run.foldr = ", "no key run.foldr"),
        ("CONTRIBUTING.md", "make chaos", "make caos", "make knows no caos"),
        ("docs/runs.md", "longrow runs list", "longrow run list", "no command run"),
        ("docs/runs.md", "`trainer.profile = 20`", "`trainer.profil = 20`", "trainer.profil"),
        ("docs/evaluation.md", "--memory 0,64,256", "--memroy 0,64,256", "--memroy"),
        ("docs/evaluation.md", "longrow check demo", "longrow chek demo", "no command chek"),
        ("docs/tracking.md", "--backend-store-uri=sqlite", "--backend-uri=sqlite", "--backend-uri"),
        ("docs/tutorial.md", "mlflow ui", "mlflow iu", "No such command"),
        ("docs/cluster.md", "-- python -m jobs.train", "-- python -m jobs.trian", "trian"),
        ("docs/benchmarks.md", "longrow bench ", "longrow bnech ", "no command bnech"),
    ],
)
def test_a_planted_mistake_is_seen(page: str, right: str, wrong: str, told_of: str) -> None:
    assert right in TEXTS[page]
    assert any(told_of in found for found in faults(TEXTS[page].replace(right, wrong)))


def test_a_block_of_toml_that_is_no_config_is_seen() -> None:
    for page in ("README.md", "docs/cluster.md", "docs/tutorial.md"):
        assert "workers = 2" in TEXTS[page]
        with pytest.raises(ConfigError, match=r"cluster\.wrokers .+ is unknown"):
            list(faults(TEXTS[page].replace("\nworkers = 2", "\nwrokers = 2")))
