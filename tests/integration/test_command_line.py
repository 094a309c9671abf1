"""The command line from a corpus to a store, as processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.corpus import shipped_files
from pipeline.tokenizer import train_tokenizer

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


def longrow(*words: str, module: str = "jobs.cli") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=ENVIRONMENT,
        check=False,
    )


def facts(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["exit_code"] == done.returncode
    return told


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of forty definitions, a tokenizer and a store."""
    box = tmp_path_factory.mktemp("box")
    definitions = Path(shipped_files()[0]).read_text(encoding="utf-8").splitlines(keepends=True)
    (box / "corpus.jsonl").write_text("".join(definitions[:40]), encoding="utf-8")
    trained = longrow(
        *("tokenizer", str(box / "corpus.jsonl"), "--out", str(box / "tokenizer.model")),
        *("--vocab-size", "340", "--json"),
    )
    assert trained.returncode == 0, trained.stderr
    assert facts(trained)["documents"] == 40
    built = build(box, "store", "--no-ray")
    assert built.returncode == 0, built.stderr
    return box


def build(box: Path, out: str, *words: str) -> subprocess.CompletedProcess[str]:
    return longrow(
        *("build", str(box / "corpus.jsonl"), "--tokenizer", str(box / "tokenizer.model")),
        *("--out", str(box / out), "--held-out", "0.2", "--task-bytes", "4000", "--json", *words),
    )


def test_ray_actors_and_one_process_build_the_same_store(box: Path) -> None:
    done = build(box, "by_actors", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert contents(box / "by_actors") == contents(box / "store")
    assert len(list((box / "store" / "parts").glob("*.arrow"))) > 1


def test_show_counts_what_the_corpus_holds(box: Path) -> None:
    told = facts(longrow("show", str(box / "store"), "--json"))
    assert told["documents"] == 40
    assert told["sources"] == {"corpus.jsonl": 40}
    lengths = told["lengths"]
    assert isinstance(lengths, list)
    assert sum(row["documents"] for row in lengths) == 40
    assert sum(row["tokens"] for row in lengths) == told["tokens"]


def test_show_gives_a_document_back_as_it_was(box: Path) -> None:
    lines = (box / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    wanted = {json.loads(line)["id"]: json.loads(line)["text"] for line in lines}
    told = facts(longrow("show", str(box / "store"), "--doc", "7", "--json", module="jobs.cli"))
    assert told["text"] == wanted[str(told["id"])]
    for uid in (min(wanted), max(wanted)):
        named = facts(longrow("show", str(box / "store"), "--uid", uid, "--json"))
        assert (named["id"], named["text"]) == (uid, wanted[uid])


def test_a_command_runs_by_its_module_too(box: Path) -> None:
    by_group = longrow("show", str(box / "store"))
    assert longrow(str(box / "store"), module="jobs.show").stdout == by_group.stdout


def test_verify_finds_a_flipped_bit(box: Path) -> None:
    whole = longrow("verify", str(box / "store"), "--json")
    assert facts(whole)["faults"] == []
    assert build(box, "torn", "--no-ray").returncode == 0
    part = min((box / "torn" / "parts").glob("*.arrow"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(bytes(data))
    torn = longrow("verify", str(box / "torn"), "--json")
    assert torn.returncode == 3
    assert part.name in torn.stdout.splitlines()[0]


BUILD = "build {box}/corpus.jsonl --tokenizer {box}/tokenizer.model --out {box}/new"
TRAIN = "tokenizer {box}/corpus.jsonl --out {box}/new"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("biuld", 2, "tokenizer, build"),
        ("build x", 2, "--tokenizer"),
        ("show", 2, "STORE"),
        ("show {box}/nosuch", 3, "nosuch"),
        ("show {box}/store --doc 40", 2, "0 to 39"),
        ("show {box}/store --uid nobody", 2, "no document of"),
        ("show {box}/store --uid x --doc 7", 2, "give one of them"),
        ("tokenizer {box}/nosuch --out {box}/new", 3, "nosuch"),
        ("tokenizer {box}/corpus.jsonl --out {box}/tokenizer.model", 2, "--force"),
        (f"{TRAIN} --vocab-size 9", 2, "262"),
        (f"{TRAIN} --text-key no", 3, "--text-key"),
        ("build {box}/nosuch --tokenizer {box}/tokenizer.model --out {box}/new", 3, "nosuch"),
        ("build {box}/corpus.jsonl --tokenizer {box}/nosuch --out {box}/new", 3, "nosuch"),
        (f"{BUILD} --held-out 2", 2, "held_out"),
        (f"{BUILD} --no-ray --workers 2", 2, "--no-ray"),
        (f"{BUILD} --address 127.0.0.1:1", 2, "127.0.0.1:1"),
        (f"{BUILD} --no-ray --out {{box}}/corpus.jsonl/new", 2, "corpus.jsonl"),
    ],
)
def test_bad_use_is_a_sentence_and_leaves_nothing(
    box: Path, words: str, code: int, said: str
) -> None:
    done = longrow(*words.format(box=box).split(), "--json")
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert said in str(facts(done)["error"])
    assert not (box / "new").exists()


def test_ctrl_c_in_a_build_leaves_no_process_and_the_build_can_go_on(box: Path) -> None:
    many = box / "many"
    many.mkdir()
    text = (box / "corpus.jsonl").read_text(encoding="utf-8")
    for number in range(20):
        (many / f"{number:02}.jsonl").write_text(text * 40, encoding="utf-8")
    words = ["build", str(many), "--tokenizer", str(box / "tokenizer.model")]
    words += ["--out", str(box / "stopped"), "--workers", "1", "--task-bytes", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while not list((box / "stopped").glob("parts/*.json")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the foreground
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    again = longrow(*words, "--json")
    assert again.returncode == 0, again.stderr
    assert facts(again)["documents"] == 40 * 40 * 20


def test_the_bench_of_the_build_says_what_it_measured(tmp_path: Path) -> None:
    texts = [f"row {i} of light and stone " * 9 for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (tmp_path / "model").write_bytes(train_tokenizer(texts, vocab_size=300, model_type="bpe"))
    done = longrow(
        *("bench", "build", str(tmp_path / "a.jsonl"), "--tokenizer", str(tmp_path / "model")),
        *("--workers", "1", "--repeats", "1", "--json"),
    )
    found = facts(done)
    assert done.returncode == 0, done.stderr
    assert found["text_bytes"] == sum(map(len, texts))
    assert (found["bench"], found["workers"], found["repeats"]) == ("build", 1, 1)
    numbers = [found[name] for name in ("ours", "bare", "ratio", "lowest", "highest", "clock")]
    assert all(isinstance(number, float) and number > 0 for number in numbers)
    assert isinstance(found["peak_bytes"], list)
    assert len(found["peak_bytes"]) == 1
