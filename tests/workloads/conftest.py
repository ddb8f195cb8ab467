"""Runs each test with an `env` once for every environment."""

import pytest

from tests.platforms import names


@pytest.fixture(params=names())
def env(request: pytest.FixtureRequest) -> str:
    return request.param
