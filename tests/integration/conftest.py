"""A Ray for the integration tests of a file, and an S3 server for one of them."""

import uuid
from collections.abc import Iterator

import pytest

from tests.ray_here import ray_session


@pytest.fixture(scope="module")
def ray_on_this_machine() -> Iterator[None]:
    yield from ray_session()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket on an S3 server of this machine; its address."""
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    fsspec.filesystem("s3").clear_instance_cache()
    name = f"s3://{uuid.uuid4().hex}"  # all servers of this process hold the same buckets
    fsspec.filesystem("s3").mkdir(name)
    yield name
    server.stop()
