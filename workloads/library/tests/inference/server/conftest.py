"""A server for all tests that leave it running."""

from collections.abc import Generator

import pytest

from workloads.library.tests.inference.server.serving import Served, serve


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    options = ("--batch", "8", "--queue", "4", "--set", "body_bytes=100000")
    with serve(tmp_path_factory.mktemp("server"), *options) as server:
        yield server
