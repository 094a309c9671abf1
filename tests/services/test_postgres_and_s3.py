"""MLflow as a team has it: a PostgreSQL behind it, artifacts in S3, a training with a restart."""

from pathlib import Path

import pytest

from tests.services.runs import check_the_record, train_with_a_restart
from tests.services.servers import mlflow_server, postgres, s3_client, s3_server


def test_a_training_with_a_restart_is_whole_in_postgresql_and_s3(
    tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        postgres() as database,
        s3_server(tmp_path, bucket="longrow") as to_s3,
        mlflow_server(
            tmp_path,
            database=database,
            artifacts="s3://longrow/mlflow",
            environment=to_s3,
        ) as uri,
    ):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # S3's keys are the server's alone
        run_id = train_with_a_restart(tmp_path, tiny_store, {"MLFLOW_TRACKING_URI": uri})
        check_the_record(uri, run_id)
        s3 = s3_client(to_s3)
        keys = [one["Key"] for one in s3.list_objects_v2(Bucket="longrow")["Contents"]]
        assert any(key.endswith(f"{run_id}/artifacts/pictures/loss.png") for key in keys)
