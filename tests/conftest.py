"""Fixtures of every tier."""

import os
import signal
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

from tests import support

# A busy machine is not a bug: no example has a time limit. Where CI is set the examples are the same each time.
settings.register_profile(
    "holdfast",
    parent=settings.get_profile("ci" if os.environ.get("CI") else "default"),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("holdfast")

# A shell starts what it puts in the background with Ctrl-C ignored, and all that tests start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def require() -> Callable[[object, str], None]:
    """`require(shutil.which("chromium"), "chromium is not installed")`."""
    return support.require
