"""A Ray for the integration tests of a file."""

from collections.abc import Iterator

import pytest

from tests.ray_here import ray_session


@pytest.fixture(scope="module")
def ray_on_this_machine() -> Iterator[None]:
    yield from ray_session()
