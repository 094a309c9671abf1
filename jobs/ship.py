"""What `longrow submit` sends: the code that runs here, as a wheel, and the run's config beside it.

The wheel is built from the files that this very process would import, clone or installation alike,
and holds all of them. Ray unpacks it on every node into a folder that Python looks into first: that
is what an installer does with a wheel of Python files. Nothing is fetched there; what the project
needs besides (torch, Ray, MLflow ...) must be installed on the nodes. Equal code gives equal bytes.
"""

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from jobs.entry import DISTRIBUTION, PACKAGES
from trainer.errors import ConfigError

# Ray's dashboard takes no larger body (DASHBOARD_CLIENT_MAX_SIZE of 2.60).
LIMIT_BYTES = 100 * 2**20
CONFIG = "run.toml"
# Of an installation and not of the code: who installed it, from where, and what we write anew.
OF_THE_INSTALLER = {"RECORD", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json"}
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time a zip file can name


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """What is sent.

    Attributes:
        data: A zip file.
        what: It in words.
        version: Of the code; empty where none is sent.
        sha256: Of the wheel; empty where none is sent.
        files: In the wheel.
        size_bytes: Of `data`.
    """

    data: bytes
    what: str
    version: str = ""
    sha256: str = ""
    files: int = 0

    @property
    def size_bytes(self) -> int:
        return len(self.data)


def parcel(config: str, *, code: bool, home: Path | None = None) -> Parcel:
    """Pack a run's config, with the code or without.

    Args:
        config: TOML.
        code: Send the code too; else the nodes have it installed.
        home: Folder that holds the packages; that of the running code if None.

    Raises:
        ConfigError: It is too large for Ray, or this is no installation.
    """
    home = home or Path(__file__).resolve().parents[1]
    installed = _distribution()
    files = code_files(home, installed) if code else {}
    data = _zip({**files, CONFIG: config.encode()})
    if len(data) > LIMIT_BYTES:
        large = sorted(files, key=lambda name: len(files[name]), reverse=True)[:3]
        raise ConfigError(
            f"The code in {home} makes a package of {len(data):,} bytes, and Ray takes "
            f"{LIMIT_BYTES:,} at most. The largest files are {', '.join(large)}: move away what is "
            "no code, or install it on the nodes (an image) and give --installed."
        )
    told = f"{CONFIG} of {len(config.encode()):,} bytes"
    if not code:
        return Parcel(data=data, what=f"{told}; the code is what the nodes have installed")
    wheel = hashlib.sha256(_zip(files)).hexdigest()
    return Parcel(
        data=data,
        what=(
            f"{DISTRIBUTION} {installed.version} from {home}, {len(files):,} files, and {told}: "
            f"{len(data):,} bytes; sha256 of the code {wheel}"
        ),
        version=installed.version,
        sha256=wheel,
        files=len(files),
    )


def code_files(home: Path, installed: Distribution) -> dict[str, bytes]:
    """Every file of our wheel by its name in it."""
    files = dict(_packages(home))
    info = f"{DISTRIBUTION}-{installed.version}.dist-info"
    for path in installed.files or ():
        inside = path.as_posix().partition(".dist-info/")[2]
        if inside and inside not in OF_THE_INSTALLER:
            files[f"{info}/{inside}"] = Path(str(path.locate())).read_bytes()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: longrow submit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in sorted(files.items())]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    return files


def _packages(home: Path) -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        for path in sorted((home / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(home).as_posix(), path.read_bytes()


def _distribution() -> Distribution:
    try:
        return distribution(DISTRIBUTION)
    except PackageNotFoundError as error:
        raise ConfigError(
            f"{DISTRIBUTION} is not installed here, so its version and what it needs are not "
            "known: make install, or pip install -e ."
        ) from error


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _zip(files: dict[str, bytes]) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, files[name])
    return into.getvalue()
