"""A wish to stop that comes while `longrow train` still builds the store: heard at once."""

import hashlib
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.tokenizer import _interruptibly
from tests.builders import wait_for
from tests.tiny_runs import TOML

ROOT = Path(__file__).parents[2]
REST = """
inputs = ["{corpus}"]
task_bytes = 100_000
[tokenizer]
model_type = "byte"
vocab_size = 258
[trainer]
steps = 3
threads = 1
[tracking]
uri = "off"
[cluster]
launcher = "local"
"""


@pytest.mark.parametrize("way", ["longrow stop", "SIGTERM"])
def test_a_stop_during_the_build_leaves_what_is_built_and_no_run(tmp_path: Path, way: str) -> None:
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdefgh", k=6)) for _ in range(500)]
    corpus, store, folder = tmp_path / "c.jsonl", tmp_path / "store", tmp_path / "runs" / "run"
    texts = (" ".join(draw.choices(words, k=400)) for _ in range(900))
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = tmp_path / "run.toml"
    before, after = TOML.split("[rows]")
    data, rest = REST.split("[tokenizer]")
    config.write_text(
        (before + data + "[rows]" + after + "[tokenizer]" + rest).format(
            folder=tmp_path / "runs", store=store, corpus=corpus
        )
    )
    command = [sys.executable, "-m", "jobs.train", str(config)]
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        parts = store / "parts"
        assert wait_for(lambda: any(parts.glob("*.json")) or run.poll() is not None)
        run.send_signal(signal.SIGSTOP)  # so that the build is not done before the wish is there
        assert not (store / "manifest.json").exists()
        assert not (folder / "config.json").exists()
        built = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.json")}
        stop = None
        if way == "SIGTERM":
            run.send_signal(signal.SIGTERM)
        else:
            stop = subprocess.Popen(
                [sys.executable, "-m", "jobs.stop", str(folder)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert wait_for((folder / "stop.json").exists)
        run.send_signal(signal.SIGCONT)
        _, said = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 143, said
    assert "the same command goes on with it" in said
    assert not (store / "manifest.json").exists()
    assert not (tmp_path / "runs").exists()
    if stop is not None:
        assert "stopped" in stop.communicate(timeout=60)[0]
        assert stop.returncode == 0
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert built.items() <= {p.name: p.stat().st_mtime_ns for p in parts.glob("*.json")}.items()


def test_a_signal_is_heard_while_a_tokenizer_is_trained_in_c() -> None:
    ended: list[bool] = []

    def in_c() -> None:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)
        ended.append(True)

    def raises(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, raises)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError):
            _interruptibly(in_c)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not ended
