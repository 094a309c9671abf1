"""A Ray of our own for the tests that kill its actors."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator

import pytest

os.environ.setdefault("RAY_AUTH_MODE", "token")  # read when ray is imported, not when it starts
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """Address of a local Ray, its files under a short folder (its socket paths are bounded)."""
    import ray

    folder = tempfile.mkdtemp(prefix="lr-")
    try:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=int(2e8),
            _temp_dir=folder,
        )
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
