"""Schema migrations, numbered SQL files, each applied once, in one transaction, under a lock; and
who may do what.

A worker only checks. A file once applied must not change. Logins become members of the roles that
the migrations made, and of no other.
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
# Any number does, as long as every migrator takes the same one.
_LOCK = 0x686F6C64
POLL_S = 1.0
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
    return [
        Migration(
            version=int(path.name.partition("_")[0]),
            name=path.name,
            sql=path.read_text(),
        )
        for path in sorted(FOLDER.glob("*.sql"))
    ]


def migrate(connection: Connection) -> list[str]:
    """Bring the schema up to the code; returns the names of the files applied now."""
    applied: list[str] = []
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute("CREATE SCHEMA IF NOT EXISTS holdfast")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS holdfast.schema_version (version integer PRIMARY KEY, name"
            " text NOT NULL, digest text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        known = _known(connection)
        for migration in migrations():
            if migration.version in known:
                if known[migration.version] != migration.digest:
                    raise InputError(
                        "a migration was changed after it was applied",
                        got=migration.name,
                        allowed="the file as it was applied",
                        fix="restore the file and add the change as a new migration",
                    )
                continue
            # A file of this repository, never input: the one place where SQL is not a literal.
            connection.execute(cast(LiteralString, migration.sql))
            connection.execute(
                "INSERT INTO holdfast.schema_version (version, name, digest) VALUES (%s, %s, %s)",
                (migration.version, migration.name, migration.digest),
            )
            applied.append(migration.name)
    return applied


def require_current(connection: Connection) -> None:
    """InputError unless every migration that this code knows is applied, which is waited for as
    long as ENV_SCHEMA_WAIT_S: the Job that migrates may have been applied a moment ago. Newer ones
    are of newer code.
    """
    deadline = time.monotonic() + float(os.environ.get(ENV_SCHEMA_WAIT_S) or 0)
    while True:
        row = connection.execute(
            "SELECT to_regclass('holdfast.schema_version') IS NOT NULL"
        ).fetchone()
        known = _known(connection) if row and row[0] else {}
        missing = [m.name for m in migrations() if m.version not in known]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise InputError(
                "the database schema is older than the code",
                got=f"version {max(known, default=0)}, without {', '.join(missing)}",
                allowed=f"version {max(m.version for m in migrations())}",
                fix="run `python -m holdfast batch database` once as the database's owner",
            )
        connection.rollback()  # else it would hold back the very locks that the migration waits for
        time.sleep(POLL_S)


def _known(connection: Connection) -> dict[int, str]:
    rows = connection.execute("SELECT version, digest FROM holdfast.schema_version").fetchall()
    return {int(version): str(digest) for version, digest in rows}


def grants_of(texts: Iterable[str]) -> dict[str, str]:
    """`LOGIN=ROLE` -> login and role."""
    found: dict[str, str] = {}
    for text in texts:
        login, _, role = text.rpartition("=")
        if not login or role not in ROLES:
            raise InputError(
                "--grant",
                got=text,
                allowed=f"LOGIN=ROLE with {' or '.join(ROLES)}",
                fix="correct it",
            )
        found[login] = role
    return found


def act_as(connection: Connection, role: str) -> None:
    """What is made from here on belongs to `role`, so that another login can migrate next time.

    Attributes as CREATEROLE do not come with membership, so a member has to become the role.
    """
    if not _exists(connection, role):
        raise InputError(
            "--as-role",
            got=role,
            allowed="a role of this server",
            fix="remove it, or create the role",
        )
    connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))


def grant(connection: Connection, wanted: dict[str, str]) -> list[str]:
    """The changes, as text; none where all is as it should be. All in one transaction: no login is
    between two roles.
    """
    changes: list[str] = []
    with connection.transaction():
        for login, role in wanted.items():
            if not _exists(connection, login):
                raise InputError(
                    "--grant",
                    got=login,
                    allowed="a login of this server",
                    fix="deploy the foundation first",
                )
            has = _memberships(connection, login)
            names = {
                "login": sql.Identifier(login),
                "role": sql.Identifier(role),
            }
            if role not in has:
                connection.execute(sql.SQL("GRANT {role} TO {login}").format(**names))
                changes.append(f"granted {role} to {login}")
            for surplus in sorted(has & set(ROLES) - {role}):
                connection.execute(
                    sql.SQL("REVOKE {role} FROM {login}").format(
                        **names | {"role": sql.Identifier(surplus)}
                    )
                )
                changes.append(f"revoked {surplus} from {login}")
            # A revocation takes back what the acting role granted, and passes over the rest in
            # silence.
            left = sorted(_memberships(connection, login) & set(ROLES) - {role})
            if left:
                raise InputError(
                    f"rights of {login}",
                    got=", ".join([role, *left]),
                    allowed=role,
                    fix=f'as the role that granted it: REVOKE {left[0]} FROM "{login}"',
                )
    return changes


def _exists(connection: Connection, role: str) -> bool:
    return (
        connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone()
        is not None
    )


def _memberships(connection: Connection, login: str) -> set[str]:
    rows = connection.execute(
        "SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid JOIN pg_roles"
        " u ON u.oid = m.member WHERE u.rolname = %s",
        (login,),
    )
    return {str(name) for (name,) in rows}
