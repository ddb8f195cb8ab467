"""Tests of the embedded PostgreSQL: its life, its access, and connections to it."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.inference.results.connect import WORKER_ROLE, connect, database_uri, open_pool
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.inference.results.postgres_access import (
    make_private,
    require_reachable,
    server_uid,
    socket_folder,
)
from holdfast.support.errors import InputError
from tests import support

pytestmark = pytest.mark.process
DATABASE = (sys.executable, "-m", "holdfast", "batch", "database", "--dir")
# The path is too long for a socket, so the socket has a folder of its own.
LONG = "it's a name with spaces " * 5


@contextmanager
def run_command(folder: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Runs `batch database --dir`; yields its process and URI, and kills it at the end."""
    with subprocess.Popen([*DATABASE, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["uri"]
        finally:
            process.kill()


def test_a_database_survives_a_kill_and_stops_cleanly(tmp_path: Path) -> None:
    folder = tmp_path / LONG
    with run_command(folder) as (_, uri), psycopg.connect(uri) as connection:
        connection.execute("INSERT INTO holdfast.job (job) VALUES ('committed')")
    with run_command(folder) as (process, uri):
        with psycopg.connect(uri) as connection:
            assert connection.execute("SELECT job FROM holdfast.job").fetchone() == ("committed",)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not (folder / "pgdata" / "postmaster.pid").exists()
    (folder / "pgdata" / "PG_VERSION").write_text("9.6\n")
    require_start_error(folder, "FATAL")
    require_start_error(folder / "postgres.log" / "db", "Not a directory")


def require_start_error(folder: Path, message: str) -> None:
    match = f"PostgreSQL does not start.*{message}"
    with pytest.raises(InputError, match=match), EmbeddedPostgres(folder):
        pass


@pytest.mark.parametrize(
    ("uri", "service"), [("postgresql:///?service=holdfast", ""), ("postgresql://", "holdfast")]
)
def test_a_service_file_may_name_the_database(
    server: EmbeddedPostgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uri: str,
    service: str,
) -> None:
    """Host, user and password are in a mounted file, not in the URI, with a Cloud SQL proxy."""
    parameters = conninfo_to_dict(server.uri) | {"password": "pa ss"}
    lines = []
    for name, value in parameters.items():
        lines.append(f"{name}={value}")
    (tmp_path / "pg_service.conf").write_text("\n".join(["[holdfast]", *lines, ""]))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "pg_service.conf"))
    if service:
        monkeypatch.setenv("PGSERVICE", service)
    with connect(database_uri(uri)) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (parameters["user"],)
    with open_pool(uri, size=1) as pool, pool.connection() as connection:
        assert connection.execute("SELECT current_user").fetchone() == (WORKER_ROLE,)
    with pytest.raises(InputError, match="not found"):
        connect("service=another", patience_s=0.0)


def can_connect_as(uri: str, uid: int) -> bool:
    """Returns True if another account of this machine can connect."""
    support.require(shutil.which("setpriv"), "setpriv (util-linux) is missing")
    code = "import psycopg, sys; psycopg.connect(sys.argv[1], connect_timeout=5)"
    command = [
        "setpriv",
        f"--reuid={uid}",
        f"--regid={uid}",
        "--clear-groups",
        sys.executable,
        "-c",
        code,
        uri,
    ]
    client = subprocess.run(command, capture_output=True, text=True)
    if client.returncode != 0:
        assert "OperationalError" in client.stderr, client.stderr
        return False
    return True


def test_a_server_is_private_and_alone_in_its_folder(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / LONG) as server:
        folder = Path(str(conninfo_to_dict(server.uri)["host"]))
        assert not folder.is_relative_to(tmp_path)
        assert oct(folder.stat().st_mode) == "0o40700"
        assert folder.stat().st_uid == server_uid()
        with pytest.raises(InputError, match="another process"), EmbeddedPostgres(tmp_path / LONG):
            pass
        if os.geteuid() == 0:  # only root can act as another account
            # An earlier version wrote rules that trust all users.
            rules = tmp_path / LONG / "pgdata" / "pg_hba.conf"
            rules.write_text("local all all trust\nhost all all all trust\n")
            server.stop()
            server.start()
            assert can_connect_as(server.uri, 0)
            assert not can_connect_as(server.uri, 65533)
            assert not can_connect_as(server.uri, 65534), (
                "other programs use the server's account, too"
            )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another account")
def test_programs_that_the_servers_account_cannot_reach_are_named(tmp_path: Path) -> None:
    """As in a virtual environment below root's home, where initdb says that there is no program
    `postgres`.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    tmp_path.chmod(0o700)
    with pytest.raises(InputError, match="cannot reach its own programs") as refused:
        require_reachable(programs)
    closed = Path(refused.value.got.partition(",")[0])
    assert programs.is_relative_to(closed)
    assert f"chmod o+x {closed}" in refused.value.fix


@pytest.mark.parametrize("kind", ["link", "file"])
def test_another_users_socket_folder_is_rejected(tmp_path: Path, kind: str) -> None:
    folder = socket_folder(tmp_path / LONG / "pgdata", "of-a-test")
    folder.parent.mkdir(exist_ok=True)
    if kind == "link":
        folder.symlink_to(tmp_path)
    else:
        folder.touch()
    try:
        with pytest.raises(InputError, match="another user owns"):
            make_private(folder)
    finally:
        folder.unlink()


def test_wrong_credentials_are_bad_input_and_are_not_retried(tmp_path: Path) -> None:
    """The server asks for passwords, as Cloud SQL does."""
    rules = tmp_path / "hba.conf"
    rules.write_text("local all postgres peer map=holdfast\nlocal all all scram-sha-256\n")
    rules.chmod(0o644)
    with EmbeddedPostgres(tmp_path / "db", settings=(f"hba_file={rules}",)) as server:
        with psycopg.connect(server.uri) as connection:
            connection.execute("CREATE ROLE scorer LOGIN PASSWORD 'right'")
        address = server.uri.partition("@")[2]
        with connect(f"postgresql://scorer:right@{address}"):
            pass
        for credentials in ("scorer:canary", "scorer", "stranger:canary"):
            with pytest.raises(InputError, match="rejects this user") as error:
                connect(
                    f"postgresql://{credentials}@{address}",
                    patience_s=math.inf,
                )
            assert "canary" not in str(error.value)
