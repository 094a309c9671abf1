"""By which names MLflow's server may be called, as docs/tracking.md says it."""

import re
import urllib.error
import urllib.request
from pathlib import Path

from tests.services.servers import PAGE, mlflow_server


def answer(uri: str, host: str) -> tuple[int, str]:
    """What the server says to who calls it so."""
    request = urllib.request.Request(f"{uri}/ajax-api/2.0/mlflow/experiments/search?max_results=1")  # noqa: S310
    request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=20) as given:  # noqa: S310
            return given.status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_server_answers_to_the_names_that_it_was_told_and_to_no_other(tmp_path: Path) -> None:
    database, artifacts = f"sqlite:///{tmp_path / 'mlflow.db'}", str(tmp_path / "artifacts")
    with mlflow_server(tmp_path, database=database, artifacts=artifacts) as uri:
        here = uri.removeprefix("http://")
        for known in (here, "localhost:5000", "192.168.1.5:5000"):
            assert answer(uri, known) == (200, "")
        code, told = answer(uri, "mlflow.example.org:5000")
        assert (code, "Invalid Host header" in told) == (403, True)
    name = "MLFLOW_SERVER_ALLOWED_HOSTS"
    (hosts,) = re.findall(rf"^{name}=(\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    only = {name: hosts}
    with mlflow_server(tmp_path, database=database, artifacts=artifacts, environment=only) as uri:
        for known in hosts.split(","):
            assert answer(uri, known) == (200, "")
        for other in ("192.168.1.5:5000", "evil.example:5000"):  # they took the others' place
            assert answer(uri, other)[0] == 403
