"""What bad input gets: a sentence, its exit code, and nothing written."""

import json
from pathlib import Path

import pytest

from jobs.cli import longrow
from jobs.entry import Exit, Outcome, finish

TOML = """
[run]
folder = "runs"
[data]
store = "{store}"
[rows]
rows = 4
segment = 8
[model]
layers = 1
width = 8
heads = 1
head_width = 8
inner_width = 8
memory = 8
[trainer]
steps = 2
[tracking]
uri = "off"
[cluster]
launcher = "local"
"""


@pytest.fixture
def box(tmp_path: Path, tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a config that would work."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(TOML.format(store=tiny_store))
    return tmp_path


def code_of(*words: str) -> Exit:
    def work() -> Outcome:
        outcome = longrow.main(list(words), standalone_mode=False)
        return outcome if isinstance(outcome, Outcome) else Outcome()

    return finish(work, words)


CASES = [
    # words, exit code, what the sentence must say
    (["train", "gone.toml"], 2, ["gone.toml", "no such file"]),
    (["train", "run.toml", "--set", "trainer.stpes=5"], 2, ["trainer.stpes", "trainer.steps"]),
    (["train", "run.toml", "--set", "trainer.steps=0"], 2, ["trainer.steps = 0", "above 0"]),
    (["train", "run.toml", "--set", "rows.rows=400"], 3, ["rows.rows = 400", "rows.rows to 45"]),
    (["train", "run.toml", "--set", "data.store=nowhere"], 3, ["nowhere"]),
    (["train", "run.toml", "--set", "data.store=."], 3, ["manifest.json"]),
    (["train", "run.toml", "--set", "data.store="], 2, ["data.store", "longrow build"]),
    (
        ["train", "run.toml", "--set", "cluster.launcher=ray", "--set", "cluster.workers=3"],
        2,
        ["3", "rows"],
    ),
    (["train", "run.toml", "--set", "trainer.accumulation=3"], 2, ["accumulation", "rows"]),
    (["train", "run.toml", "--set", "run.folder=run.toml"], 2, ["run.toml", "cannot be written"]),
    (["train", "run.toml", "--set", "run.name=../up"], 2, ["run.name", "../up"]),
    (
        ["train", "run.toml", "--set", "tracking.uri=http://127.0.0.1:9"],
        2,
        ["http://127.0.0.1:9", "tracking.uri"],
    ),
    (["train", "run.toml", "--resume", "must"], 2, ["no run to go on with"]),
    (["resume", "nobody"], 2, ["nobody", "runs/nobody"]),
    (["evaluate", "nobody"], 2, ["nobody"]),
    (["generate", "nobody"], 2, ["nobody"]),
    (["show", "nobody"], 3, ["nobody"]),
    (["tokenizer", "empty.jsonl", "--out", "t.model"], 3, ["No document", "--text-key"]),
    (["tokenizer", "gone.jsonl", "--out", "t.model"], 3, ["gone.jsonl"]),
    (
        ["build", "empty.jsonl", "--tokenizer", "gone.model", "--out", "s", "--no-ray"],
        3,
        ["gone.model"],
    ),
]


@pytest.mark.parametrize(("words", "code", "says"), CASES, ids=lambda case: str(case)[:60])
def test_bad_input_is_a_sentence_with_the_way_out_and_nothing_is_written(
    box: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    says: list[str],
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (box / "empty.jsonl").write_text("")
    before = sorted(box.rglob("*"))
    assert code_of(*words) == code
    told = capsys.readouterr().err
    for word in says:
        assert word in told, told
    assert "Traceback" not in told
    assert [path for path in sorted(box.rglob("*")) if path not in before and path.is_file()] == []


def test_the_run_that_works_is_refused_where_it_would_be_another(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("train", "run.toml") == 0
    lines = (box / "runs" / "run" / "metrics.jsonl").read_text()
    assert code_of("train", "run.toml", "--resume", "never") == 2
    assert "holds a run already" in capsys.readouterr().err
    assert code_of("train", "run.toml", "--set", "rows.segment=4") == 2
    assert "rows.segment is 8 there and 4 here" in capsys.readouterr().err
    assert (box / "runs" / "run" / "metrics.jsonl").read_text() == lines


def test_a_run_is_evaluated_and_read_on_and_shown(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("train", "run.toml") == 0
    capsys.readouterr()
    assert code_of("evaluate", "run", "--memory", "0,4", "--json") == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])["scores"]
    assert [score["memory"] for score in scores] == [0, 4]
    assert scores[0]["targets"] == scores[1]["targets"] > 0
    assert (
        box / "runs" / "run" / "evaluations" / "memory_step_00000002_L8.png"
    ).stat().st_size > 5_000
    words = ("generate", "run", "--prompt", "row ", "--tokens", "9", "--json")
    assert code_of(*words) == 0
    first = capsys.readouterr().out
    assert first.startswith("row ")
    assert code_of(*words) == 0
    assert capsys.readouterr().out == first  # the same seed, the same text
    checkpoint = next((box / "runs" / "run" / "checkpoints").iterdir())
    for word in ("run", str(checkpoint)):
        assert code_of("show", word, "--json") == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["exit_code"] == 0
