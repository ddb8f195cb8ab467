"""The schema of the batch database: its migrations, and the roles of logins.

Migrations are numbered SQL files, each applied once, in one transaction, under a lock. An applied
file must not change. A worker only checks them. Logins become members of the roles that migrations
create, and of no others.
"""

import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString, cast

from psycopg import Connection, sql

from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_SCHEMA_WAIT_S

FOLDER = Path(__file__).parent / "migrations"
# Any number works if every migrator uses the same.
_LOCK = 0x686F6C64
POLL_S = 1.0
AUDIT_SETTING = "cloudsql.enable_pgaudit"
AUDIT_EXTENSION = "pgaudit"
ROLES = ("holdfast_worker", "holdfast_exporter")


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """Lists the migrations of this version, in order."""
    files: list[Migration] = []
    for path in sorted(FOLDER.glob("*.sql")):
        version = int(path.name.partition("_")[0])
        files.append(
            Migration(
                version=version,
                name=path.name,
                sql=path.read_text(),
            )
        )
    return files


def migrate(connection: Connection) -> list[str]:
    """Applies missing migrations; returns their names.

    Raises InputError if an applied migration was changed.
    """
    names: list[str] = []
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute("CREATE SCHEMA IF NOT EXISTS holdfast")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS holdfast.schema_version (version integer PRIMARY KEY, name"
            " text NOT NULL, digest text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        digests = _load_digests(connection)
        for migration in migrations():
            digest = digests.get(migration.version)
            if digest == migration.digest:
                continue
            if digest is not None:
                raise InputError(
                    "a migration was changed after it was applied",
                    got=migration.name,
                    allowed="the file as it was applied",
                    fix="restore the file and add the change as a new migration",
                )
            # The only SQL that is not a literal: a file of this repository, never input.
            connection.execute(cast(LiteralString, migration.sql))
            connection.execute(
                "INSERT INTO holdfast.schema_version (version, name, digest) VALUES (%s, %s, %s)",
                (migration.version, migration.name, migration.digest),
            )
            names.append(migration.name)
        if _enable_audit(connection):
            names.append(f"extension {AUDIT_EXTENSION}")
    return names


def _enable_audit(connection: Connection) -> bool:
    """Creates the extension that records changes of schema and roles, where the server has it and
    it is switched on, as on Cloud SQL; its setting alone records nothing.
    """
    row = connection.execute(
        "SELECT current_setting(%s, true) = 'on' AND EXISTS (SELECT FROM pg_available_extensions"
        " WHERE name = %s AND installed_version IS NULL)",
        (AUDIT_SETTING, AUDIT_EXTENSION),
    ).fetchone()
    if not row or not row[0]:
        return False
    statement = sql.SQL("CREATE EXTENSION IF NOT EXISTS {}")
    connection.execute(statement.format(sql.Identifier(AUDIT_EXTENSION)))
    return True


def require_current(connection: Connection) -> None:
    """Raises InputError unless every migration of this version is applied; newer ones are ignored.

    Waits for ENV_SCHEMA_WAIT_S, as the Job that migrates may start at the same time.
    """
    deadline = time.monotonic() + float(os.environ.get(ENV_SCHEMA_WAIT_S) or 0)
    while True:
        row = connection.execute(
            "SELECT to_regclass('holdfast.schema_version') IS NOT NULL"
        ).fetchone()
        digests = _load_digests(connection) if row and row[0] else {}
        missing = [file.name for file in migrations() if file.version not in digests]
        if not missing:
            return
        if time.monotonic() > deadline:
            newest = migrations()[-1]
            raise InputError(
                "the database schema is older than the code",
                got=f"version {max(digests, default=0)}, without {', '.join(missing)}",
                allowed=f"version {newest.version}",
                fix="run `holdfast batch database` once as the database's owner",
            )
        connection.rollback()  # otherwise this transaction would block the migration
        time.sleep(POLL_S)


def _load_digests(connection: Connection) -> dict[int, str]:
    rows = connection.execute("SELECT version, digest FROM holdfast.schema_version").fetchall()
    return {int(version): str(digest) for version, digest in rows}


def parse_grants(texts: Iterable[str]) -> dict[str, str]:
    """Parses `LOGIN=ROLE`; returns roles by login. Raises InputError for anything else."""
    roles: dict[str, str] = {}
    for text in texts:
        login, _, role = text.rpartition("=")
        if not login or role not in ROLES:
            raise InputError(
                "--grant",
                got=text,
                allowed=f"LOGIN=ROLE with {' or '.join(ROLES)}",
                fix="correct it",
            )
        roles[login] = role
    return roles


def act_as(connection: Connection, role: str) -> None:
    """Switches to `role`, which then owns all that is created, so that other logins can migrate.

    A member has to become the role, as membership does not include attributes such as CREATEROLE.
    Raises InputError for an unknown role.
    """
    if not _exists(connection, role):
        raise InputError(
            "--as-role",
            got=role,
            allowed="a role of this server",
            fix="remove it, or create the role",
        )
    connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))


def grant(connection: Connection, roles: dict[str, str]) -> list[str]:
    """Makes each login a member of its role and of no other of ROLES; describes the changes.

    It uses one transaction, so that no login is without a role in between. Raises InputError for an
    unknown login, or for a role that cannot be revoked.
    """
    changes: list[str] = []
    with connection.transaction():
        for login, role in roles.items():
            if not _exists(connection, login):
                raise InputError(
                    "--grant",
                    got=login,
                    allowed="a login of this server",
                    fix="deploy the foundation first",
                )
            changes += _set_role(connection, login, role)
            _require_only(connection, login, role)
    return changes


def _set_role(
    connection: Connection,
    login: str,
    role: str,
) -> list[str]:
    changes: list[str] = []
    memberships = _memberships(connection, login)
    if role not in memberships:
        statement = sql.SQL("GRANT {role} TO {login}")
        connection.execute(_format_names(statement, role, login))
        changes.append(f"granted {role} to {login}")
    for surplus in sorted(memberships & set(ROLES) - {role}):
        statement = sql.SQL("REVOKE {role} FROM {login}")
        connection.execute(_format_names(statement, surplus, login))
        changes.append(f"revoked {surplus} from {login}")
    return changes


def _format_names(
    statement: sql.SQL,
    role: str,
    login: str,
) -> sql.Composed:
    return statement.format(
        role=sql.Identifier(role),
        login=sql.Identifier(login),
    )


def _require_only(connection: Connection, login: str, role: str) -> None:
    # REVOKE only affects grants of the acting role, and silently ignores others.
    surplus = sorted(_memberships(connection, login) & set(ROLES) - {role})
    if surplus:
        raise InputError(
            f"rights of {login}",
            got=", ".join([role, *surplus]),
            allowed=role,
            fix=f'as the role that granted it: REVOKE {surplus[0]} FROM "{login}"',
        )


def _exists(connection: Connection, role: str) -> bool:
    cursor = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,))
    return cursor.fetchone() is not None


def _memberships(connection: Connection, login: str) -> set[str]:
    rows = connection.execute(
        "SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid JOIN pg_roles"
        " u ON u.oid = m.member WHERE u.rolname = %s",
        (login,),
    )
    return {str(name) for (name,) in rows}
