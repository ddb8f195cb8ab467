"""Tests of full databases and disks and unusable folders: a clear error, no partial result."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_RETRY
from workloads.library.tests.inference.harness import CountingPredictor, Harness
from workloads.library.tests.inference.test_commands import enqueue, run_command

pytestmark = pytest.mark.process
ROWS = [{"id": f"{n:05d}", "text": "good"} for n in range(1_600)]
_REJECT = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.item > '01500' THEN RAISE EXCEPTION 'no room here' USING ERRCODE = TG_ARGV[0]; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refusing BEFORE INSERT ON holdfast.item
FOR EACH ROW EXECUTE FUNCTION public.refuse({state})
"""


@contextmanager
def reject_inserts(uri: str, state: str) -> Generator[None]:
    """Makes the database reject items from the 1,500th on, with an SQLSTATE."""
    with psycopg.connect(uri) as connection:
        connection.execute(sql.SQL(_REJECT).format(state=state))
    try:
        yield
    finally:
        with psycopg.connect(uri) as connection:
            connection.execute("DROP FUNCTION public.refuse CASCADE")


def count_rows(uri: str, job: str) -> list[int]:
    """Counts the rows of a job in the tables job, item, outbox and queue."""
    query = sql.SQL("SELECT count(*) FROM holdfast.{} WHERE job = %s")
    counts: list[int] = []
    with psycopg.connect(uri) as connection:
        for table in ("job", "item", "outbox", "queue"):
            cursor = connection.execute(query.format(sql.Identifier(table)), (job,))
            row = cursor.fetchone()
            assert row is not None
            counts.append(row[0])
    return counts


@pytest.mark.parametrize(
    ("state", "code"), [("53100", EXIT_RETRY), ("25006", EXIT_RETRY), ("42501", EXIT_BAD_INPUT)]
)
def test_a_failed_enqueue_leaves_no_rows(
    server: EmbeddedPostgres,
    job: str,
    tmp_path: Path,
    state: str,
    code: int,
) -> None:
    """The database is full, or read-only, or the user has no right to it."""
    with reject_inserts(server.uri, state):
        stderr = enqueue(server.uri, job, tmp_path, ROWS, code=code).stderr
    assert stderr.count("\n  ") == 3
    assert "no room here" in stderr
    assert "a bug" not in stderr
    assert count_rows(server.uri, job) == [0, 0, 0, 0]
    enqueue(server.uri, job, tmp_path, ROWS)
    assert count_rows(server.uri, job) == [1, 1_600, 0, 1_600]


def test_a_failed_export_leaves_no_partial_file(
    server: EmbeddedPostgres,
    harness: Harness,
    job: str,
    tmp_path: Path,
) -> None:
    enqueue(
        server.uri,
        job,
        tmp_path,
        ROWS[:10],
    )
    harness.worker(CountingPredictor()).run()
    partial = tmp_path / "full.jsonl.partial"
    partial.symlink_to("/dev/full")
    cases = (
        (tmp_path / "full.jsonl", EXIT_RETRY, "the disk is full"),
        (tmp_path / "rows.jsonl" / "o.jsonl", EXIT_BAD_INPUT, "the path cannot be used"),
        ("/proc/o.jsonl", EXIT_BAD_INPUT, "the path cannot be used"),
    )
    for out, code, message in cases:
        stderr = run_command("export", job, "--out", out, uri=server.uri, code=code).stderr
        assert message in stderr
        assert stderr.count("\n  ") == 3
    assert not partial.is_symlink()
