"""Who may do what in the results database: logins become members of the roles that the migrations made, and of no other."""

from collections.abc import Iterable

from psycopg import Connection, sql

from holdfast.contract.errors import InputError

ROLES = ("holdfast_worker", "holdfast_exporter")


def parse(texts: Iterable[str]) -> dict[str, str]:
    """`LOGIN=ROLE` -> login and role."""
    found: dict[str, str] = {}
    for text in texts:
        login, _, role = text.rpartition("=")
        if not login or role not in ROLES:
            raise InputError("--grant", got=text, allowed=f"LOGIN=ROLE with {' or '.join(ROLES)}", fix="correct it")
        found[login] = role
    return found


def act_as(connection: Connection, role: str) -> None:
    """What is made from here on belongs to `role`, whoever migrates next time.

    Attributes as CREATEROLE do not come with membership, so a member has to become the role.
    """
    if not _exists(connection, role):
        raise InputError("--as-role", got=role, allowed="a role of this server", fix="remove it, or create the role")
    connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))


def grant(connection: Connection, wanted: dict[str, str]) -> list[str]:
    """The changes, as text; none where all is as it should be. All in one transaction: no login is between two roles."""
    changes: list[str] = []
    with connection.transaction():
        for login, role in wanted.items():
            if not _exists(connection, login):
                raise InputError(
                    "--grant", got=login, allowed="a login of this server", fix="deploy the foundation first"
                )
            has = _memberships(connection, login)
            names = {"login": sql.Identifier(login), "role": sql.Identifier(role)}
            if role not in has:
                connection.execute(sql.SQL("GRANT {role} TO {login}").format(**names))
                changes.append(f"granted {role} to {login}")
            for surplus in sorted(has & set(ROLES) - {role}):
                connection.execute(
                    sql.SQL("REVOKE {role} FROM {login}").format(**names | {"role": sql.Identifier(surplus)})
                )
                changes.append(f"revoked {surplus} from {login}")
            _require_only(connection, login, role)
    return changes


def _require_only(connection: Connection, login: str, role: str) -> None:
    """A revocation takes back what the acting role granted, and passes over the rest in silence."""
    left = sorted(_memberships(connection, login) & set(ROLES) - {role})
    if left:
        raise InputError(
            f"rights of {login}", got=", ".join([role, *left]), allowed=role,
            fix=f'as the role that granted it: REVOKE {left[0]} FROM "{login}"',
        )  # fmt: skip


def _exists(connection: Connection, role: str) -> bool:
    return connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is not None


def _memberships(connection: Connection, login: str) -> set[str]:
    rows = connection.execute(
        "SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid JOIN pg_roles u ON u.oid = m.member"
        " WHERE u.rolname = %s",
        (login,),
    )
    return {str(name) for (name,) in rows}
