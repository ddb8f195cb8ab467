"""A full database or disk, a folder that cannot be used: a clear error, and no partial result."""

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
_REFUSE = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.item > '01500' THEN RAISE EXCEPTION 'no room here' USING ERRCODE = TG_ARGV[0]; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refusing BEFORE INSERT ON holdfast.item FOR EACH ROW EXECUTE FUNCTION public.refuse({state})
"""


@contextmanager
def refusing(uri: str, state: str) -> Generator[None]:
    """The database refuses items from the 1,500th on, with an SQLSTATE."""
    with psycopg.connect(uri) as connection:
        connection.execute(sql.SQL(_REFUSE).format(state=state))
    try:
        yield
    finally:
        with psycopg.connect(uri) as connection:
            connection.execute("DROP FUNCTION public.refuse CASCADE")


def left(uri: str, job: str) -> list[int]:
    count = sql.SQL("SELECT count(*) FROM holdfast.{} WHERE job = %s")
    queries = [count.format(sql.Identifier(table)) for table in ("job", "item", "outbox", "queue")]
    with psycopg.connect(uri) as connection:
        return [found for query in queries for (found,) in connection.execute(query, (job,))]


@pytest.mark.parametrize(
    ("state", "code"), [("53100", EXIT_RETRY), ("25006", EXIT_RETRY), ("42501", EXIT_BAD_INPUT)]
)
def test_an_enqueue_that_the_database_refuses_leaves_nothing_behind(
    server: EmbeddedPostgres,
    job: str,
    tmp_path: Path,
    state: str,
    code: int,
) -> None:
    """Full, read-only, no right to it."""
    with refusing(server.uri, state):
        done = enqueue(server.uri, job, tmp_path, ROWS, code=code)
    assert (
        done.stderr.count("\n  ") == 3
        and "no room here" in done.stderr
        and "a bug" not in done.stderr
    )
    assert left(server.uri, job) == [0, 0, 0, 0]
    enqueue(server.uri, job, tmp_path, ROWS)
    assert left(server.uri, job) == [1, 1_600, 0, 1_600]


def test_an_export_without_room_or_folder_is_no_bug_and_leaves_no_part(
    server: EmbeddedPostgres,
    harness: Harness,
    job: str,
    tmp_path: Path,
) -> None:
    enqueue(server.uri, job, tmp_path, ROWS[:10])
    harness.worker(CountingPredictor()).run()
    (part := tmp_path / "full.jsonl.partial").symlink_to("/dev/full")
    cases = (
        (tmp_path / "full.jsonl", EXIT_RETRY, "the disk is full"),
        (tmp_path / "rows.jsonl" / "o.jsonl", EXIT_BAD_INPUT, "the path cannot be used"),
        ("/proc/o.jsonl", EXIT_BAD_INPUT, "the path cannot be used"),
    )
    for out, code, what in cases:
        done = run_command(
            "export",
            job,
            "--out",
            out,
            uri=server.uri,
            code=code,
        )
        assert what in done.stderr and done.stderr.count("\n  ") == 3
    assert not part.is_symlink()
