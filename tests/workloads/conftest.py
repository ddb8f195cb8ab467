"""Each test with an `env` is one of every environment."""

import pytest

from tests.platforms import names


@pytest.fixture(params=names())
def env(request: pytest.FixtureRequest) -> str:
    return request.param
