"""Fixtures of every tier."""

from collections.abc import Callable

import pytest

from tests import support


@pytest.fixture(scope="session")
def require() -> Callable[[object, str], None]:
    """`require(shutil.which("chromium"), "chromium is not installed")`."""
    return support.require
