"""Fixtures of the llm tier: vLLM's environment, and the database of batch workers."""

from pathlib import Path

import pytest

from workloads.library.tests.inference.conftest import server as server
from workloads.library.tests.llm import install


@pytest.fixture(scope="session")
def home() -> Path:
    """Returns the environment of vLLM."""
    return install.install()


@pytest.fixture(scope="session")
def model(home: Path) -> Path:
    """Returns the folder of the tiny model."""
    return install.make_model(home)
