"""A server for all tests that leave it running."""

from collections.abc import Generator

import pytest

from workloads.library.tests.inference.server.serving import Served, serve


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    # With the default window a batch is overdue after a second, which a busy machine may take.
    options = ("--window", "60", "--batch", "8", "--queue", "4", "--set", "body_bytes=100000")
    with serve(tmp_path_factory.mktemp("server"), *options) as server:
        yield server
