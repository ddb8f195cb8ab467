"""Fixtures of inference: one embedded PostgreSQL for all tests, and a job for each test."""

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
from workloads.library.tests.checkpoint.conftest import bucket as bucket
from workloads.library.tests.checkpoint.conftest import gcs_emulator as gcs_emulator
from workloads.library.tests.inference.harness import Harness

_jobs = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[EmbeddedPostgres]:
    # No test needs data after a power cut, so fsync would only cost time.
    folder = tmp_path_factory.mktemp("postgres")
    with EmbeddedPostgres(folder, settings=("fsync=off",)) as postgres:
        with connect(postgres.uri) as connection:
            schema.migrate(connection)
        yield postgres


@pytest.fixture(scope="session")
def pool(server: EmbeddedPostgres) -> Generator[ConnectionPool[Connection]]:
    with open_pool(server.uri, size=8) as pool:
        yield pool


@pytest.fixture
def connection(server: EmbeddedPostgres) -> Generator[Connection]:
    with psycopg.connect(server.uri, autocommit=True) as connection:
        yield connection


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
    """Returns a function that starts `batch run`; the processes end with the test."""
    with ExitStack() as processes:

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
            process = processes.enter_context(subprocess.Popen(command, env=variables))
            processes.callback(process.kill)
            return process

        yield start


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for n in range(100):
        content = bytes((n * k) % 251 for k in range(1, n + 2))
        (folder / f"{n:03d}.txt").write_bytes(content)
    return folder
