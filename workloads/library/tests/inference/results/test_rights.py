"""Migration and rights as the platform's Job brings them, on a real server with the roles that
Cloud SQL makes.
"""

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
from tests.workloads.manifests.rendered import bodies
from workloads.library.tests.inference.test_commands import Done, in_this_process

pytestmark = pytest.mark.process
EXAMPLE = load("example")
WORKER, EXPORTER, MIGRATOR = (
    EXAMPLE.database.users[role] for role in ("batch", "exporter", "migrator")
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """As Terraform and Cloud SQL leave an instance: logins of IAM that may do nothing, one member
    of the owner.
    """
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


def rendered_command(server: EmbeddedPostgres) -> Done:
    """The container's own words, as the migrator."""
    (job,) = [body for body in bodies("example", "platform") if body["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][1:4] == ["-m", "holdfast", "batch"]
    return in_this_process(
        [*container["command"][4:], "--database", uri(server, MIGRATOR)], dict(os.environ)
    )


NOT_ALLOWED: tuple[tuple[str, LiteralString], ...] = (
    (WORKER, "CREATE TABLE holdfast.mine (a int)"),
    (WORKER, "CREATE TABLE public.mine (a int)"),
    (WORKER, "TRUNCATE holdfast.queue"),
    (WORKER, "DELETE FROM holdfast.result"),
    (WORKER, "DELETE FROM holdfast.dead_letter WHERE false"),
    (WORKER, "DROP TABLE holdfast.result"),
    (WORKER, "ALTER TABLE holdfast.item ADD COLUMN x text"),
    (WORKER, "CREATE ROLE mine"),
    (WORKER, "SET ROLE cloudsqlsuperuser"),
    (EXPORTER, "SELECT value FROM holdfast.result"),
    (EXPORTER, "SELECT body FROM holdfast.item"),
)


def test_the_rendered_job_brings_tables_and_rights_once_and_workers_get_no_more_than_they_need(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    batch = [sys.executable, "-m", "holdfast", "batch"]
    with (
        psycopg.connect(uri(server, MIGRATOR)) as connection,
        pytest.raises(InputError, match="older"),
    ):
        # without a migration beside it a missing schema is refused at once
        schema.require_current(connection)
    (documents := tmp_path / "documents").mkdir()
    (documents / "a.txt").write_text("one item")
    command = [
        *batch,
        "enqueue",
        "night",
        "--source",
        documents,
        "--database",
        uri(server, WORKER),
    ]
    waiting = {"HOLDFAST_SCHEMA_WAIT_SECONDS": "60", "PATH": ""}
    early = subprocess.Popen(
        command,
        env=waiting,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = rendered_command(server)
    assert first.code == 0, first.stderr
    assert f"granted holdfast_worker to {WORKER}" in first.stderr
    assert rendered_command(server).stderr == "nothing to do\n"
    _, errors_of_early = early.communicate(timeout=90)
    assert early.returncode == 0, errors_of_early

    run = [
        *batch,
        "run",
        "night",
        "--predictor",
        "entropy",
        "--database",
        uri(server, WORKER),
    ]
    assert (
        subprocess.run(
            run,
            check=False,
            timeout=120,
            capture_output=True,
        ).returncode
        == 0
    )
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

    # A right that moved is taken from its old holder, and a login that was not deployed gets none.
    surplus = sql.SQL("GRANT holdfast_worker TO {}").format(sql.Identifier(EXPORTER))
    with psycopg.connect(uri(server, MIGRATOR), autocommit=True) as owner:
        owner.execute("SET ROLE cloudsqlsuperuser")
        owner.execute(surplus)
    assert rendered_command(server).stderr == f"revoked holdfast_worker from {EXPORTER}\n"
    with psycopg.connect(server.uri, autocommit=True) as somebody_else:
        somebody_else.execute(surplus)
        done = rendered_command(server)
        assert (
            done.code == EXIT_BAD_INPUT
            and f'REVOKE holdfast_worker FROM "{EXPORTER}"' in done.stderr
        )
        somebody_else.execute(
            sql.SQL("REVOKE holdfast_worker FROM {}").format(sql.Identifier(EXPORTER))
        )
    words = [
        "--as-role",
        "cloudsqlsuperuser",
        f"--grant={WORKER}=holdfast_exporter",
        "--grant=nobody=holdfast_worker",
    ]
    done = in_this_process(
        [
            "database",
            *words,
            "--database",
            uri(server, MIGRATOR),
        ],
        dict(os.environ),
    )
    assert done.code == EXIT_BAD_INPUT and "nobody" in done.stderr
    assert rendered_command(server).stderr == "nothing to do\n", "nothing was granted"
