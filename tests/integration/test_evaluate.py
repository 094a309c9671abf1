"""`longrow evaluate` and what stays of it: numbers with their settings, a picture, the record."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from tests.command import code_of
from tests.integration.test_bad_input import TOML
from trainer.run_folder import RunFolder
from trainer.summary import read_scores

LN2 = math.log(2)
HUGE = 10**12


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, tiny_store: Path) -> Path:
    """A folder with a run that is not tracked, and one that is."""
    box = tmp_path_factory.mktemp("box")
    (box / "run.toml").write_text(TOML.format(store=tiny_store))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(box)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert code_of("train", "run.toml") == 0
        words = ("--set", "run.name=tracked", "--set", "tracking.uri=")
        assert code_of("train", "run.toml", *words) == 0
    return box


@pytest.fixture(autouse=True)
def _in_the_box(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(box)


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def record(box: Path) -> tuple[MlflowClient, str]:
    known = json.loads((box / "runs" / "tracked" / "mlflow.json").read_text())
    return MlflowClient(known["uri"]), known["run_id"]


def test_a_sweep_of_memory_lengths_stands_with_its_settings_in_a_file_of_its_own(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(box / "runs" / "run")
    before = read_scores(folder)
    words = ("evaluate", "run", "--memory", "0,4,8", "--segment", "4", "--rows", "3", "--json")
    assert code_of(*words, "--clamp", "5") == 0
    facts = told(capsys)
    told_in, drawn_in = map(Path, facts["files"])
    assert re.fullmatch(r"memory_step_00000002_L4-[0-9a-f]{8}\.json", told_in.name)
    kept = json.loads(told_in.read_text())
    assert {name: facts[name] for name in kept} == kept
    for name, value in {"segment": 4, "rows": 3, "clamp": 5, "same_length": False}.items():
        assert kept[name] == value
    assert [score["memory"] for score in kept["scores"]] == [0, 4, 8]
    for score in kept["scores"]:
        assert (score["segment"], score["rows"], score["clamp"]) == (4, 3, 5)
        bits = score["nats"] / LN2
        assert score["perplexity"] == pytest.approx(math.exp(score["nats"] / score["targets"]))
        assert score["bits_per_byte"] == pytest.approx(bits / score["num_bytes"])
        assert score["bits_per_char"] == pytest.approx(bits / score["num_chars"])
        assert score["bits_per_word"] == pytest.approx(bits / score["num_words"])
    assert drawn_in.stat().st_size > 5_000
    assert read_scores(folder) == before  # what the training itself scored
    others = [("--clamp", "6"), ("--same-length",), ("--rows", "2"), ("--segment", "3"), ()]
    names = {told_in.name}
    for other in others:
        assert code_of("evaluate", "run", "--memory", "4", "--json", *other) == 0
        names.add(Path(told(capsys)["files"][0]).name)
    assert len(names) == 1 + len(others)  # none has taken another's place
    assert {"memory_step_00000002_L3.json", "memory_step_00000002_L8.json"} <= names
    assert code_of("evaluate", "run", "--memory", "8,0") == 0
    table = capsys.readouterr().out.splitlines()
    assert table[1].split() == [
        *("memory", "nats/token", "perplexity", "bits/byte", "bits/char", "bits/word")
    ]
    assert [line.split()[0] for line in table[2:4]] == ["8", "0"]
    same = {score.memory: f"{score.loss:.4f}" for score in before}
    assert {int(line.split()[0]): line.split()[1] for line in table[2:4]} == same


def test_true_context_is_measured_drawn_and_kept(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("evaluate", "run", "--context", "--contexts", "0,8,16", "--block", "4", "--json")
    assert code_of(*words) == 0
    facts = told(capsys)
    assert [row["context"] for row in facts["contexts"]] == [0, 8, 16]
    assert facts["contexts"][-1]["gain_r0.1"] is None
    assert [one["ratio"] for one in facts["effective_context"]] == [0.1, 0.5, 1.0]
    assert facts["targets"] == facts["blocks"] * 4 > 0
    kept = Path(facts["files"][0])
    assert kept.parent == box / "runs" / "run" / "evaluations"
    assert re.fullmatch(r"context_step_00000002_M8-[0-9a-f]{8}\.json", kept.name)
    saved = json.loads(kept.read_text())
    assert saved["contexts"] == facts["contexts"]
    assert (saved["memory"], saved["segment"], saved["block"]) == (8, 8, 4)
    assert kept.with_suffix(".png").stat().st_size > 5_000
    assert code_of("evaluate", "run", "--context", "--memory", "4", "--blocks", "9", "--json") == 0
    facts = told(capsys)
    assert (facts["memory"], facts["blocks"]) == (4, 9)
    assert [score["memory"] for score in facts["scores"]] == [4]


def test_two_models_are_measured_on_the_same_targets_as_one_group(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("evaluate", "run", "--context", "--contexts", "0,8,16", "--block", "8", "--json")
    assert code_of(*words) == 0
    alone = told(capsys)
    vanilla = ("--set", "run.name=vanilla", "--set", "model.memory=0")
    assert code_of("train", "run.toml", *vanilla) == 0
    assert code_of(*words, "--beside", "vanilla") == 0
    out = capsys.readouterr().out
    assert "no memory: context and block are one segment" in out
    facts = json.loads(out.splitlines()[-1])
    mine, other = facts["models"]
    assert [(model["memory"], model["step"]) for model in (mine, other)] == [(8, 2), (0, 2)]
    for row, known in zip(mine["contexts"], alone["contexts"], strict=True):
        assert row["nats/token"] == known["nats/token"]
    for model in (mine, other):
        assert list(model["nats_by_place"]) == ["0", "16"]
        for context, row in (("0", 0), ("16", -1)):
            by_place = model["nats_by_place"][context]
            assert len(by_place) == 8
            assert sum(by_place) / 8 == pytest.approx(model["contexts"][row]["nats/token"])
    kept = Path(facts["files"][0])
    assert kept.parent == box / "runs" / "run" / "evaluations"
    assert kept.name != Path(alone["files"][0]).name
    assert json.loads(kept.read_text())["models"] == facts["models"]
    assert kept.with_suffix(".png").stat().st_size > 5_000


def test_the_record_of_the_run_gets_picture_and_table_once_and_keeps_its_status(box: Path) -> None:
    client, run_id = record(box)
    for _ in range(2):
        assert code_of("evaluate", "tracked", "--memory", "0,4") == 0
        assert code_of("evaluate", "tracked", "--context") == 0
    assert client.get_run(run_id).info.status == "FINISHED"
    tables = [found.path for found in client.list_artifacts(run_id, "evaluations")]
    assert [path.rpartition("-")[0] for path in tables] == [
        "evaluations/context_step_00000002_M8",
        "evaluations/memory_step_00000002_L8",
    ]
    pictures = {found.path for found in client.list_artifacts(run_id, "pictures")}
    assert {
        "pictures/context_step_00000002_M8.png",
        "pictures/memory_step_00000002_L8.png",
    } <= pictures
    table = json.loads(Path(client.download_artifacts(run_id, tables[1])).read_text())
    at = table["columns"].index("memory")
    assert [row[at] for row in table["data"]] == [0, 4]  # not appended to itself


def test_a_record_that_does_not_answer_costs_a_sentence_and_no_number(
    box: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = box / "runs" / "tracked" / "mlflow.json"
    was = path.read_text()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    path.write_text(json.dumps({**json.loads(was), "uri": "http://127.0.0.1:9"}))
    try:
        assert code_of("evaluate", "tracked", "--memory", "2", "--segment", "2") == 0
        assert "http://127.0.0.1:9 did not take it" in capsys.readouterr().err
    finally:
        path.write_text(was)
    assert (path.parent / "evaluations" / "memory_step_00000002_L2.json").is_file()


def test_where_tracking_is_off_nothing_is_asked_of_mlflow(
    box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trainer.mlflow_run

    def never(*_given: object, **_named: object) -> None:
        raise AssertionError

    monkeypatch.setattr(trainer.mlflow_run, "add_to_run", never)
    assert code_of("evaluate", "run", "--memory", "4") == 0
    known = (box / "runs" / "tracked" / "mlflow.json").read_text()
    (box / "runs" / "run" / "mlflow.json").write_text(known)  # tracked once, switched off since
    assert code_of("evaluate", "run", "--memory", "4") == 0
    (box / "runs" / "run" / "mlflow.json").unlink()


def test_an_exported_run_is_evaluated_and_read_on_as_the_run_is(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("export", "run", "out") == 0
    assert (box / "out" / "tokenizer.model").is_file()
    scores, texts = [], []
    for word in ("run", "out"):
        capsys.readouterr()
        assert code_of("evaluate", word, "--memory", "8,0", "--json") == 0
        scores.append(told(capsys)["scores"])
        assert code_of("generate", word, "--prompt", "row ", "--tokens", "9", "--json") == 0
        texts.append(told(capsys)["texts"])
    assert scores[0] == scores[1]
    assert texts[0] == texts[1]
    assert (box / "out" / "evaluations" / "memory_step_00000002_L8.json").is_file()


def test_a_run_that_went_out_by_published_names_scores_the_same_when_it_is_back(
    tiny_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("export", "run", "published", "--names", "original") == 0
    words = ("published/model.safetensors", "published/config.json", "back")
    assert code_of("import-weights", *words) == 0
    scores = []
    for words in (("run",), ("back", "--store", str(tiny_store))):
        capsys.readouterr()
        how = ("--memory", "8,0", "--segment", "8", "--rows", "4", "--json")
        assert code_of("evaluate", *words, *how) == 0
        scores.append([score["nats"] for score in told(capsys)["scores"]])
    assert scores[0] == scores[1]


def test_several_prompts_are_one_batch_and_the_first_comes_as_it_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("generate", "run", "--tokens", "12", "--json")
    alone = []
    for prompt in ("row ", "of a segment and its "):
        assert code_of(*words, "--prompt", prompt, "--temperature", "0") == 0
        alone.append(told(capsys)["texts"][0])
    prompts = ("--prompt", "row ", "--prompt", "of a segment and its ", "--top-k", str(HUGE**3))
    assert code_of(*words, *prompts, "--temperature", "0") == 0
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[-1])["texts"] == alone
    texts = [each["prompt"] + each["text"] for each in alone]
    assert out.startswith(f"{texts[0]}\n\n{texts[1]}\n")
    assert code_of(*words, *prompts) == 0  # drawn, among more tokens than there are


def test_the_five_lines_of_the_documentation_write_text(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line]) == 5
    exec(code.replace('"demo"', repr(str(box / "runs" / "run"))), {})  # noqa: S102
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("evaluate run --memory 0,x", 2, "like 0,128,640"),
        ("evaluate run --memory -3", 2, "from 0 up"),
        ("evaluate run --rows -1", 2, "--rows"),
        ("evaluate run --blocks 0 --context", 2, "--blocks"),
        ("evaluate run --blocks 5", 2, "belong to --context"),
        ("evaluate run --contexts 0,4", 2, "belong to --context"),
        ("evaluate run --context --contexts 4", 2, "two lengths"),
        ("evaluate run --context --contexts 0,x", 2, "like 0,128,640"),
        ("evaluate run --context --memory 0,4", 2, "one --memory length"),
        ("evaluate run --context --contexts 0,999999", 3, "longest held-out document"),
        ("evaluate run --context --block 999999", 3, "longest held-out document"),
        ("evaluate run --same-length --memory 0", 2, "same_length"),
        ("evaluate run --store nowhere", 3, "nowhere"),
        (f"evaluate run --memory {HUGE}", 2, "GiB at least"),
        (f"evaluate run --context --memory {HUGE}", 2, "GiB at least"),
        ("evaluate run --beside run", 2, "--beside belong to --context"),
        ("evaluate run --context --beside nobody", 2, "nobody"),
        (f"evaluate run --rows {HUGE}", 2, "of CPU memory are free"),
        (f"evaluate run --segment {HUGE}", 2, "Lower the largest of them"),
        (f"evaluate run --clamp {HUGE**40}", 2, "--clamp"),
        ("evaluate run --workers -1", 2, "--workers"),
        ("evaluate run --workers 5", 2, "share 4 rows, and each wants one"),
        (f"evaluate run --rows {HUGE} --workers {HUGE}", 2, "GiB of memory at least"),
        ("generate run --tokens -5", 2, "--tokens"),
        ("generate run --memory 0", 2, "give generation a memory"),
        (f"generate run --memory {HUGE}", 2, "GiB at least"),
        ("generate run --temperature inf", 2, "temperature = inf"),
        ("generate run --top-p nan", 2, "top_p = nan"),
        ("check nobody", 2, "nobody"),
        ("check gone.toml", 2, "no such file"),
        ("check run.toml", 0, ""),
        ("train run.toml --set trainer.z_loss=-1", 2, "trainer.z_loss = -1"),
        ("train run.toml --set trainer.z_loss=inf", 2, "trainer.z_loss = inf"),
        ("export run run.toml/x/../y", 2, "run.toml is a file"),
    ],
)
def test_bad_use_is_a_sentence_and_leaves_nothing(
    box: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, says: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in box.rglob("*")}
    assert code_of(*words.split()) == code
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err
    assert {path: path.stat().st_mtime_ns for path in box.rglob("*")} == before


def test_a_store_of_another_tokenizer_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.build import build_store
    from pipeline.settings import BuildSettings
    from pipeline.tokenizer import train_tokenizer

    texts = [f"the {word} of a row is read once" for word in ("memory", "step", "token") * 20]
    model = train_tokenizer(texts, vocab_size=300, model_type="bpe")
    (tmp_path / "t.model").write_bytes(model)
    lines = [json.dumps({"id": str(i), "text": text}) for i, text in enumerate(texts)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    build_store(
        [str(tmp_path / "c.jsonl")],
        tokenizer=str(tmp_path / "t.model"),
        out=str(tmp_path / "s"),
        settings=BuildSettings(held_out=0.3),
    )
    assert code_of("evaluate", "run", "--store", str(tmp_path / "s")) == 2
    assert "build the store with the model's tokenizer" in capsys.readouterr().err
