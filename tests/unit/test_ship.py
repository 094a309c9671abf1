"""What `longrow submit` sends: all of the code, as a wheel, and the config."""

import hashlib
import io
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from jobs import ship
from jobs.entry import DISTRIBUTION, PACKAGES
from jobs.ship import parcel
from trainer.errors import ConfigError

ROOT = Path(__file__).parents[2]


def names(data: bytes) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        return set(packed.namelist())


def test_every_file_of_the_code_is_sent_and_nothing_that_python_made_of_it() -> None:
    sent = names(parcel("", code=True).data)
    there = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there <= sent
    assert {name.partition("/")[0] for name in sent - there} == {
        "run.toml",
        f"{DISTRIBUTION}-{distribution(DISTRIBUTION).version}.dist-info",
    }


def test_what_is_sent_is_an_installation_once_it_is_unpacked(tmp_path: Path) -> None:
    sent = parcel("[run]\n", code=True)
    with zipfile.ZipFile(io.BytesIO(sent.data)) as packed:
        packed.extractall(tmp_path)
    (info,) = tmp_path.glob("*.dist-info")
    unpacked = Distribution.at(info)
    assert unpacked.version == sent.version
    assert unpacked.requires == distribution(DISTRIBUTION).requires
    files = unpacked.files or []
    assert len(files) == sent.files
    for file in files:
        if file.hash is not None:
            data = Path(str(file.locate())).read_bytes()
            assert len(data) == file.size
            assert ship._digest(data) == file.hash.value
    code = "import jobs.cli, jobs.train; print(jobs.cli.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(tmp_path / "jobs" / "cli.py")


def test_equal_code_has_one_hash_and_other_code_another(tmp_path: Path) -> None:
    first = parcel("a", code=True)
    assert parcel("b", code=True).sha256 == first.sha256
    assert parcel("a", code=True).data == first.data
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    before = parcel("", code=True, home=tmp_path)
    (tmp_path / "jobs" / "notes.txt").write_text("of any kind")
    (tmp_path / "jobs" / "__pycache__").mkdir()
    (tmp_path / "jobs" / "__pycache__" / "notes.pyc").write_text("is made again there")
    after = parcel("", code=True, home=tmp_path)
    assert after.files == before.files + 1
    assert after.sha256 != before.sha256


def test_only_the_config_is_sent_to_nodes_that_have_the_rest() -> None:
    sent = parcel("[run]\n", code=False)
    assert names(sent.data) == {"run.toml"}
    assert (sent.version, sent.sha256, sent.files) == ("", "", 0)
    assert "what the nodes have installed" in sent.what


def test_more_than_ray_takes_is_refused_with_the_limit_and_the_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    noise = b"".join(hashlib.sha256(bytes([k])).digest() for k in range(100))
    (tmp_path / "model" / "weights.bin").write_bytes(noise)
    monkeypatch.setattr(ship, "LIMIT_BYTES", 3_000)
    with pytest.raises(ConfigError, match=r"Ray takes 3,000 at most.*model/weights.bin"):
        parcel("", code=True, home=tmp_path)


def test_the_limit_is_rays_own() -> None:
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE

    assert ship.LIMIT_BYTES == DASHBOARD_CLIENT_MAX_SIZE
