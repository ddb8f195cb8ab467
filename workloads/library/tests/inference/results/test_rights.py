"""Tests of the platform's migration Job: schema and rights on a server with Cloud SQL's roles."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from holdfast.inference.results import schema
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT
from tests.platforms import load
from tests.workloads.manifests.rendered import load_objects
from workloads.library.tests.inference.test_commands import Completed, run_in_this_process

pytestmark = pytest.mark.process
EXAMPLE = load("example")
WORKER = EXAMPLE.database.users["batch"]
EXPORTER = EXAMPLE.database.users["exporter"]
MIGRATOR = EXAMPLE.database.users["migrator"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """Starts a server like an instance of Cloud SQL: IAM logins without rights, one owner."""
    with EmbeddedPostgres(tmp_path / "cloudsql", settings=("fsync=off",)) as running:
        with psycopg.connect(running.uri, autocommit=True) as owner:
            owner.execute("CREATE ROLE cloudsqlsuperuser NOLOGIN CREATEROLE CREATEDB")
            owner.execute("CREATE ROLE cloudsqliamserviceaccount NOLOGIN")
            for login in (WORKER, EXPORTER, MIGRATOR):
                name = sql.Identifier(login)
                owner.execute(
                    sql.SQL("CREATE ROLE {} LOGIN IN ROLE cloudsqliamserviceaccount").format(name)
                )
            owner.execute(sql.SQL("GRANT cloudsqlsuperuser TO {}").format(sql.Identifier(MIGRATOR)))
            owner.execute("CREATE DATABASE results OWNER cloudsqlsuperuser")
        yield running


def uri(server: EmbeddedPostgres, login: str) -> str:
    return make_conninfo(server.uri, user=login, dbname="results")


def run_rendered_job(server: EmbeddedPostgres) -> Completed:
    """Runs the command of the rendered container as the migrator."""
    (job,) = [body for body in load_objects("example", "platform") if body["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][1:4] == ["-m", "holdfast", "batch"]
    arguments = [*container["command"][4:], "--database", uri(server, MIGRATOR)]
    return run_in_this_process(arguments, dict(os.environ))


NOT_ALLOWED: tuple[tuple[str, LiteralString], ...] = (
    (WORKER, "CREATE TABLE holdfast.own (a int)"),
    (WORKER, "CREATE TABLE public.own (a int)"),
    (WORKER, "TRUNCATE holdfast.queue"),
    (WORKER, "DELETE FROM holdfast.result"),
    (WORKER, "DELETE FROM holdfast.dead_letter WHERE false"),
    (WORKER, "DROP TABLE holdfast.result"),
    (WORKER, "ALTER TABLE holdfast.item ADD COLUMN x text"),
    (WORKER, "CREATE ROLE own"),
    (WORKER, "SET ROLE cloudsqlsuperuser"),
    (EXPORTER, "SELECT value FROM holdfast.result"),
    (EXPORTER, "SELECT body FROM holdfast.item"),
)


def run_batch(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "holdfast",
        "batch",
        *arguments,
    ]


def test_a_missing_schema_is_an_error(server: EmbeddedPostgres) -> None:
    with (
        psycopg.connect(uri(server, MIGRATOR)) as connection,
        pytest.raises(InputError, match="older"),
    ):
        schema.require_current(connection)


def test_the_rendered_job_migrates_once_and_workers_get_the_least_rights(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "a.txt").write_text("one item")
    database = ("--database", uri(server, WORKER))
    # This process starts first and waits for the schema.
    early = subprocess.Popen(
        run_batch("enqueue", "night", "--source", str(documents), *database),
        env={"HOLDFAST_SCHEMA_WAIT_SECONDS": "60", "PATH": ""},
        stderr=subprocess.PIPE,
        text=True,
    )
    migration = run_rendered_job(server)
    assert migration.code == 0, migration.stderr
    assert f"granted holdfast_worker to {WORKER}" in migration.stderr
    assert run_rendered_job(server).stderr == "nothing to do\n"
    _, early_stderr = early.communicate(timeout=90)
    assert early.returncode == 0, early_stderr

    run = run_batch("run", "night", "--predictor", "entropy", *database)
    worker = subprocess.run(
        run,
        check=False,
        timeout=120,
        capture_output=True,
    )
    assert worker.returncode == 0, worker.stderr
    with psycopg.connect(uri(server, EXPORTER)) as connection:
        assert connection.execute("SELECT count(*) FROM holdfast.job_scaling").fetchone() == (1,)
    for login, statement in NOT_ALLOWED:
        with (
            psycopg.connect(uri(server, login)) as connection,
            pytest.raises(errors.InsufficientPrivilege),
        ):
            connection.execute(statement)
    with psycopg.connect(server.uri) as owner:
        rows = owner.execute(
            "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'holdfast'"
        ).fetchall()
    assert rows in ([], [("cloudsqlsuperuser",)])


def test_the_rendered_job_creates_the_audit_extension_where_it_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pgaudit is not part of this server: another extension stands for it."""
    monkeypatch.setattr(schema, "AUDIT_EXTENSION", "hstore")
    for state, created in (("off", 0), ("on", 1)):
        settings = ("fsync=off", f"{schema.AUDIT_SETTING}={state}")
        with (
            EmbeddedPostgres(tmp_path / state, settings=settings) as server,
            psycopg.connect(server.uri, autocommit=True) as owner,
        ):
            changes = schema.migrate(owner)
            assert changes.count("extension hstore") == created
            assert "extension hstore" not in schema.migrate(owner)
            row = owner.execute(
                "SELECT count(*) FROM pg_extension WHERE extname = 'hstore'"
            ).fetchone()
            assert row == (created,)


def test_the_rendered_job_revokes_rights_that_have_moved(server: EmbeddedPostgres) -> None:
    assert run_rendered_job(server).code == 0
    surplus = sql.SQL("GRANT holdfast_worker TO {}").format(sql.Identifier(EXPORTER))
    with psycopg.connect(uri(server, MIGRATOR), autocommit=True) as owner:
        owner.execute("SET ROLE cloudsqlsuperuser")
        owner.execute(surplus)
    assert run_rendered_job(server).stderr == f"revoked holdfast_worker from {EXPORTER}\n"

    revoke = sql.SQL("REVOKE holdfast_worker FROM {}").format(sql.Identifier(EXPORTER))
    with psycopg.connect(server.uri, autocommit=True) as superuser:
        superuser.execute(surplus)
        refusal = run_rendered_job(server)
        assert refusal.code == EXIT_BAD_INPUT, "another role granted it"
        assert f'REVOKE holdfast_worker FROM "{EXPORTER}"' in refusal.stderr
        superuser.execute(revoke)
    assert run_rendered_job(server).stderr == "nothing to do\n"


def test_an_unknown_login_gets_no_rights_and_no_other_login_does(server: EmbeddedPostgres) -> None:
    assert run_rendered_job(server).code == 0
    arguments = [
        "database",
        "--as-role",
        "cloudsqlsuperuser",
        f"--grant={WORKER}=holdfast_exporter",
        "--grant=nobody=holdfast_worker",
        "--database",
        uri(server, MIGRATOR),
    ]
    refusal = run_in_this_process(arguments, dict(os.environ))
    assert refusal.code == EXIT_BAD_INPUT
    assert "nobody" in refusal.stderr
    assert run_rendered_job(server).stderr == "nothing to do\n", "nothing was granted"
