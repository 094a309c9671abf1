"""A Ray for tests: on this machine, for us alone, gone afterwards.

Import this before Ray: Ray looks at its authentication settings once, when it is imported.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator

os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def ray_session(*, num_cpus: int = 2) -> Iterator[None]:
    """Start Ray, give way to the tests, end it."""
    import ray

    folder = tempfile.mkdtemp(prefix="lr")
    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200_000_000,
        _temp_dir=folder,
    )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
