"""What every test shares: the mark of its folder, and how hard Hypothesis looks."""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
# What the code under test leaves in the temp folder, killed as it is, goes with this one; the
# tests' own folders (tmp_path) stay where pytest keeps them.
# Its path is short, for Ray refuses those of sockets over 107 bytes.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
SCRATCH = tempfile.mkdtemp(prefix="l-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"])
os.environ |= dict.fromkeys(("TMPDIR", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"), SCRATCH)
tempfile.tempdir = None  # look at TMPDIR again
# A shell that starts the tests in the background has them ignore Ctrl-C, and so what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# As `longrow` does before any import: MLflow would leave a number for its maker in the home folder.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Tests are small and many: threads that wait for each other cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=200, deadline=None, derandomize=True)
settings.register_profile(
    "long", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_unconfigure() -> None:
    shutil.rmtree(SCRATCH, ignore_errors=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """tests/services is of `make test-services` alone: it wants a browser and a PostgreSQL."""
    asked = any("services" in word for word in config.invocation_params.args)
    return True if collection_path == TESTS / "services" and not asked else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(item.path.relative_to(TESTS).parts[0])


@pytest.fixture(scope="module", autouse=True)
def environment_of_a_file() -> Iterator[None]:
    """What a file's tests, or libraries in them, set in the environment ends with that file."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def no_signal_was_sent() -> Iterator[None]:
    """A signal that a test sends to this process is forgotten with it."""
    yield
    if entry := sys.modules.get("jobs.entry"):
        entry._SENT.clear()


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 60 small documents in bytes, a dozen of them held out."""
    from pipeline.build import build_store
    from pipeline.settings import BuildSettings
    from pipeline.tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("tiny")
    draw = random.Random(7)
    words = ["row", "memory", "segment", "offset", "reset", "step", "document", "token"]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 60))) for _ in range(60)]
    lines = [json.dumps({"id": f"d{i}", "text": text}) for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "bytes.model").write_bytes(train_tokenizer([], vocab_size=258, model_type="byte"))
    build_store(
        [str(folder / "corpus.jsonl")],
        tokenizer=str(folder / "bytes.model"),
        out=str(folder / "store"),
        settings=BuildSettings(held_out=0.2),
    )
    return folder / "store"
