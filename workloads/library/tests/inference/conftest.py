"""One embedded PostgreSQL for all tests of the room; each test has a job of its own."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.inference.results import schema
from holdfast.inference.results.connect import connect, open_pool
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from workloads.library.tests.inference.harness import Harness

_jobs = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[EmbeddedPostgres]:
    # Nothing here outlives a power cut, and two cores have better things to do than fsync.
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), settings=("fsync=off",)) as running:
        with connect(running.uri) as connection:
            schema.migrate(connection)
        yield running


@pytest.fixture(scope="session")
def pool(server: EmbeddedPostgres) -> Generator[ConnectionPool[Connection]]:
    with open_pool(server.uri, size=8) as opened:
        yield opened


@pytest.fixture
def connection(server: EmbeddedPostgres) -> Generator[Connection]:
    with psycopg.connect(server.uri, autocommit=True) as opened:
        yield opened


@pytest.fixture
def job() -> str:
    return f"job-{next(_jobs)}"


@pytest.fixture
def harness(
    pool: ConnectionPool[Connection],
    connection: Connection,
    job: str,
    tmp_path: Path,
) -> Harness:
    return Harness(
        pool=pool,
        connection=connection,
        job=job,
        events=tmp_path / "e.jsonl",
    )


@pytest.fixture
def workers(server: EmbeddedPostgres) -> Generator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts `batch run` with arguments and environment variables; ended with the test."""
    with ExitStack() as started:

        def start(*arguments: object, **environment: str) -> "subprocess.Popen[bytes]":
            command = [
                sys.executable,
                "-m",
                "holdfast",
                "batch",
                "run",
                *map(str, arguments),
            ]
            variables = {
                **os.environ,
                "HOLDFAST_DATABASE_URL": server.uri,
                **environment,
            }
            process = started.enter_context(subprocess.Popen(command, env=variables))
            started.callback(process.kill)
            return process

        yield start


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for n in range(100):
        (folder / f"{n:03d}.txt").write_bytes(bytes((n * k) % 251 for k in range(1, n + 2)))
    return folder
