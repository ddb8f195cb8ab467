"""No room in the database or on the disk, folders that cannot be used: a clear error, and nothing half done."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from holdfast.contract.exit_codes import EXIT_BAD_INPUT, EXIT_RETRY
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from workloads.library.tests.inference.test_commands import run_command

pytestmark = pytest.mark.process


def rows(folder: Path, count: int, *more: str) -> Path:
    source = folder / "rows.jsonl"
    source.write_text("\n".join([*(json.dumps({"id": f"{n:05d}", "text": "good"}) for n in range(count)), *more]))
    return source


@contextmanager
def refusing(uri: str, job: str, state: str) -> Generator[None]:
    """The database refuses items of this job from the 1,500th on, with an SQLSTATE."""
    body = sql.SQL(
        "CREATE FUNCTION public.refuse_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.job = {job} AND NEW.item > '01500' THEN RAISE EXCEPTION 'no room here' USING ERRCODE = {state};"
        " END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER {trigger} BEFORE INSERT ON holdfast.item FOR EACH ROW EXECUTE FUNCTION public.refuse_{name}()"
    )
    names = {"name": sql.SQL(state), "trigger": sql.Identifier(state), "job": job, "state": state}
    with psycopg.connect(uri) as connection:
        connection.execute(body.format(**names))
    try:
        yield
    finally:
        with psycopg.connect(uri) as connection:
            connection.execute(sql.SQL("DROP TRIGGER {} ON holdfast.item").format(sql.Identifier(state)))
            connection.execute(sql.SQL("DROP FUNCTION public.refuse_{}").format(sql.SQL(state)))


def left(uri: str, job: str) -> list[int]:
    with psycopg.connect(uri) as connection:
        tables = ("job", "item", "outbox", "queue")
        counts = [
            sql.SQL("(SELECT count(*) FROM holdfast.{} WHERE job = {})").format(sql.Identifier(t), job) for t in tables
        ]
        row = connection.execute(sql.SQL("SELECT ") + sql.SQL(", ").join(counts)).fetchone()
    assert row is not None
    return list(row)


@pytest.mark.parametrize(("state", "code"), [("53100", EXIT_RETRY), ("25006", EXIT_RETRY), ("42501", EXIT_BAD_INPUT)])
def test_an_enqueue_that_the_database_refuses_leaves_nothing_behind(
    server: EmbeddedPostgres, job: str, tmp_path: Path, state: str, code: int
) -> None:
    """Full, read-only, no right to it."""
    source = rows(tmp_path, 2_500)
    with refusing(server.uri, job, state):
        done = run_command("enqueue", job, "--source", source, uri=server.uri, code=code)
    assert done.stderr.count("\n  ") == 3 and "no room here" in done.stderr and "a bug" not in done.stderr
    assert left(server.uri, job) == [0, 0, 0, 0]
    run_command("enqueue", job, "--source", source, uri=server.uri)
    assert left(server.uri, job) == [1, 2_500, 0, 2_500]


def test_an_export_without_room_or_folder_is_no_bug_and_leaves_no_part(
    server: EmbeddedPostgres, job: str, tmp_path: Path
) -> None:
    run_command("enqueue", job, "--source", rows(tmp_path, 10), uri=server.uri)
    run_command("run", job, "--predictor", "entropy", "--events", tmp_path / "e", uri=server.uri)
    part = tmp_path / "full.jsonl.partial"
    part.symlink_to("/dev/full")
    cases = (
        (tmp_path / "full.jsonl", EXIT_RETRY, "the disk is full"),
        (tmp_path / "rows.jsonl" / "o.jsonl", EXIT_BAD_INPUT, "the path cannot be used"),
        ("/proc/o.jsonl", EXIT_BAD_INPUT, "the path cannot be used"),
    )
    for out, code, what in cases:
        done = run_command("export", job, "--out", out, uri=server.uri, code=code)
        assert what in done.stderr and done.stderr.count("\n  ") == 3
    assert not part.is_symlink()


def test_events_that_cannot_be_written_are_bad_input(server: EmbeddedPostgres, job: str, tmp_path: Path) -> None:
    source = rows(tmp_path, 1)
    run_command("enqueue", job, "--source", source, uri=server.uri)
    for events in (source / "e", "/proc/e"):
        words = ("run", job, "--predictor", "entropy", "--events", events)
        assert "the path cannot be used" in run_command(*words, uri=server.uri, code=EXIT_BAD_INPUT).stderr
