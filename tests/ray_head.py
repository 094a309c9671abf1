"""A Ray cluster of one node on loopback, as `ray start --head` makes one, with its dashboard.

Its Python has what the project needs and not the project: what a job runs there is what was sent.
"""

import os
import secrets
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from jobs.cluster_look import look
from tests.ranks import free_port
from trainer.errors import ConfigError
from trainer.temp_folder import remove_folder

# What the nodes of a cluster hold, for stores and for MLflow.
NAMES = (
    "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "PGPASSWORD",
)  # fmt: skip
START = ["ray", "start", "--head", "--num-cpus", "2", "--dashboard-host", "127.0.0.1"]


class Head:
    """The head and all that it starts, with a token, a home and a folder of its own.

    Attributes:
        path: All of it lies below.
        address: Of its dashboard.
        token: That it asks for.
        secrets: By name: the token, and what the nodes hold beside it.
        environment: Of its processes, and of a client's.
    """

    def __init__(self, start: list[str] | None = None) -> None:
        """Start it by the words of a `ray start`; where it listens and writes is ours to say."""
        self.path = Path(tempfile.mkdtemp(prefix="lrh-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))
        self.token = secrets.token_hex(32)
        self.secrets = {name: secrets.token_hex(16) for name in NAMES}
        self.secrets["RAY_AUTH_TOKEN"] = self.token
        self._start = (start or START)[1:]
        python = _python_without_us(self.path / "venv")
        self.environment = {
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "HOME": str(self.path / "home"),
            "TMPDIR": str(self.path / "t"),
            "RAY_AUTH_MODE": "token",
            **self.secrets,
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "TERM": "dumb",
        }
        for name in ("home", "t"):
            (self.path / name).mkdir()
        self._ray = [str(python), "-m", "ray.scripts.scripts"]
        dashboard = free_port()
        self.address = f"http://127.0.0.1:{dashboard}"
        ours = {
            "--port": free_port(),
            "--dashboard-port": dashboard,
            "--ray-client-server-port": free_port(),
            # Where another Ray of the machine has taken its usual place, this agent starts no job.
            "--dashboard-agent-listen-port": free_port(),
            "--temp-dir": self.path / "r",
            "--object-store-memory": 200_000_000,
        }
        words = [str(word) for pair in ours.items() for word in pair]
        self._log = (self.path / "head.txt").open("w", encoding="utf-8")
        self._head = subprocess.Popen(
            [*self._ray, *self._start, "--block", *words],
            cwd=self.path,
            env=self.environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def ray(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command of Ray's own, as its user."""
        return subprocess.run(
            [*self._ray, *words],
            cwd=cwd,
            env=self.environment | {"RAY_API_SERVER_ADDRESS": self.address},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def wait_until_it_answers(self, *, seconds: float = 90) -> None:
        """Until it takes jobs from this process, which has its token in the environment."""
        end = time.monotonic() + seconds
        while True:
            try:
                look(self.address, timeout_s=5)
            except ConfigError:
                assert time.monotonic() < end, (self.path / "head.txt").read_text()
                assert self._head.poll() is None, (self.path / "head.txt").read_text()
                time.sleep(0.2)
            else:
                return

    def end(self) -> None:
        """End it with all that it started, and remove its files."""
        self._head.kill()  # a SIGTERM has it wait half a minute for processes that do not hear it
        self._head.wait(timeout=60)
        while left := self.processes():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        self._log.close()
        remove_folder(str(self.path))

    def processes(self) -> dict[int, str]:
        """Those that were started with our token in their environment, with their command lines."""
        found: dict[int, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is not ours
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command and self.token.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = command
        return found


def _python_without_us(folder: Path) -> Path:
    """A Python with the packages of this one; an editable install is none of them."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages" / "packages.pth"
    # Not as a folder of packages: the links in there, of editable installs, are left alone.
    packages.write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder / "bin" / "python"
