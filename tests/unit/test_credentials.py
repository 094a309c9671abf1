"""An address with a credential in it is refused by every command and key, and told to nobody."""

import time
from pathlib import Path

import pytest

from jobs.config import keys, read_config
from jobs.entry import Exit, finish
from pipeline.credentials import credential_in
from pipeline.errors import DataError
from pipeline.files import filesystem
from tests.command import code_of
from trainer.errors import ConfigError

SECRET = "hunter2"  # noqa: S105
ADDRESSES = [
    f"s3://me:{SECRET}@bucket/x",
    f"s3://me:a/{SECRET}@bucket/x",  # a key of S3 may hold a slash
    f"http://me:{SECRET}@127.0.0.1:9",
    f"simplecache::s3://me:{SECRET}@bucket/x",
    f"https://127.0.0.1:9/x.jsonl?X-Amz-Signature={SECRET}",
]
TRAIN = ("train", "run.toml", "--set")
COMMANDS = [
    *((name, "{}") for name in ("show", "verify", "resume", "evaluate", "generate", "check")),
    *((name, "{}") for name in ("stop", "pin", "train", "submit")),
    ("export", "{}", "out"),
    ("import-weights", "{}", "c.json", "out"),
    ("runs", "list", "--folder", "{}"),
    ("tokenizer", "{}", "--out", "t.model"),
    ("tokenizer", "c.jsonl", "--out", "{}"),
    ("build", "{}", "--tokenizer", "t", "--out", "s", "--no-ray"),
    ("build", "c.jsonl", "--tokenizer={}", "--out", "s", "--no-ray"),
    ("build", "c.jsonl", "--tokenizer", "t", "--out", "{}", "--no-ray"),
    ("evaluate", "run", "--store", "{}"),
    ("doctor", "--storage", "{}"),
    *((name, "job", "--address", "{}") for name in ("status", "logs", "stop")),
    ("list", "--address", "{}"),
    (*TRAIN, "run.folder={}"),
    (*TRAIN, "data.nothing={}"),
    (*TRAIN, "{}"),
    ("{}",),
]


@pytest.fixture(autouse=True)
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    Path("run.toml").write_text("", encoding="utf-8")
    Path("c.jsonl").write_text('{"text": "a b c"}\n', encoding="utf-8")
    return tmp_path


def told_nobody(box: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    out, err = capsys.readouterr()
    files = [path for path in box.rglob("*") if path.is_file() and path.name != "list.txt"]
    return SECRET not in out + err + "".join(path.read_text("utf-8") for path in files)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_refuses_it_without_a_word_of_it(
    words: tuple[str, ...], box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(box.iterdir())
    for address in ADDRESSES:
        assert code_of(*(word.format(address) for word in words)) is Exit.BAD_USE
    assert told_nobody(box, capsys)
    assert sorted(box.iterdir()) == before


def test_a_command_that_is_run_as_a_module_refuses_it_too(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from jobs.show import command

    for address in ADDRESSES:
        words = [address]
        assert finish(lambda words=words: command.main(words, standalone_mode=False), words) == 2
    assert told_nobody(box, capsys)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_key_of_a_config_refuses_it_without_a_word_of_it(address: str) -> None:
    listed = {"data.inputs": [address], "data.mixture": [{"store": address, "weight": 1}]}
    for key in keys():
        section, _, name = key.partition(".")
        value = listed.get(key, address)
        with pytest.raises(ConfigError, match=f"^{key} .+ holds a (user|secret)") as refused:
            read_config(base={section: {name: value}})
        assert SECRET not in str(refused.value)
        variable = {f"LONGROW__{section}__{name}".upper(): address}
        with pytest.raises(ConfigError, match=f"^{key} ") as refused:
            read_config(environment=variable)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize("name", ["RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI"])
@pytest.mark.parametrize("address", [ADDRESSES[2], ADDRESSES[4]])
def test_it_is_refused_in_the_environment_too(
    name: str,
    address: str,
    box: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, address)
    assert code_of("doctor") is Exit.FAILED
    assert "a password in its address" in capsys.readouterr().out
    if name == "RAY_API_SERVER_ADDRESS":
        assert code_of("list") is Exit.BAD_USE
    assert told_nobody(box, capsys)


def test_it_is_refused_in_a_list_of_inputs(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for address in ADDRESSES:
        Path("list.txt").write_text(address, encoding="utf-8")
        words = ("tokenizer", "@list.txt", "--out", "t.model", "--model-type", "byte")
        assert code_of(*words) is Exit.BAD_DATA
        with pytest.raises(DataError, match="An address holds"):
            filesystem(address)
    assert told_nobody(box, capsys)


@pytest.mark.parametrize(
    "harmless",
    [
        "s3://bucket/runs/a@b",
        "http://127.0.0.1:8265/a@b",
        "sqlite:////srv/a@b/mlflow.db",
        "sftp://me@host/corpus",
        "abfs://box@account.dfs.core.windows.net/corpus",
        "github://fsspec:filesystem_spec@main/README.md",
        "zip://*.jsonl::s3://bucket/a@b.zip",
        "http://[::1]:8265/a@b",
        "https://host/x?tokenizer=a&max_tokens=5",
        "https://host/x?page=2",
        "postgresql+psycopg2://mlflow@127.0.0.1:5432/mlflow",
        "data.inputs=['http://h:80/a', 'me@example.org']",
        "a prompt: me@example.org wrote http://host/x",
    ],
)
def test_what_holds_no_password_is_none(harmless: str) -> None:
    assert credential_in(harmless) == ""


def test_an_account_of_azure_is_no_user() -> None:
    assert credential_in("abfss://box@account.dfs.core.windows.net/corpus", user=True) == ""
    assert credential_in("sftp://me@host/corpus", user=True) != ""


@pytest.mark.parametrize("word", ["a", "\u6f22"])
def test_a_long_word_is_looked_through_at_once(word: str) -> None:
    began_s = time.process_time()
    credential_in(word * 20_000, user=True)
    assert time.process_time() - began_s < 0.5
