"""Connections to the batch database: bounded waits, least rights, and which errors are worth a
retry.

Passwords are in the URI or in PGPASSWORD and are never printed.
"""

import os
import time

import psycopg
from psycopg import Connection, errors, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

from holdfast.inference.errors import QueueUnavailable
from holdfast.support.errors import InputError, Later, Unjudged
from holdfast.vocabulary.environment import ENV_DATABASE

WORKER_ROLE = "holdfast_worker"  # made by migration 0001: rows only, no DDL

# The server went away, is starting, is out of disk or memory, or could not serialise: later it may
# work.
TRANSIENT = (
    # 08 connection, 53 resources, 57 shutdown, 40 serialisation and deadlock
    psycopg.OperationalError,
    psycopg.InterfaceError,  # the connection died between two statements
    errors.InternalError_,
    QueueUnavailable,
)
# SQLSTATE classes of a wrong password, an unknown user or database: later it works no better.
_PERMANENT = ("28", "3D", "3F")


def database_uri(option: str) -> str:
    uri = option or os.environ.get(ENV_DATABASE, "")
    if not uri.strip():  # libpq takes a blank for all of its defaults
        raise InputError(
            "no database is named",
            got="neither --database nor " + ENV_DATABASE,
            allowed="postgresql://USER@HOST/NAME, or what `batch database --dir` prints",
            fix="start one with `python -m holdfast batch database --dir out/db`",
        )
    try:
        conninfo_to_dict(uri)
    except psycopg.ProgrammingError:
        raise InputError(  # the text is not repeated: it may hold a password
            "the database URI cannot be read",
            got="(hidden)",
            allowed="postgresql://USER@HOST/NAME",
            fix="correct it",
        ) from None
    return uri


def connect(uri: str, *, patience_s: float = 30.0) -> Connection:
    """One connection, for commands. A server that is starting is waited for; wrong credentials are
    not.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return psycopg.connect(uri, connect_timeout=5, application_name="holdfast")
        except psycopg.OperationalError as error:
            refusal = permanent(error)
            if refusal:
                raise refusal from None
            if time.monotonic() > deadline:
                raise Unjudged(f"the database does not answer: {_first_line(error)}") from None
            time.sleep(0.2)


def open_pool(uri: str, *, size: int = 4) -> ConnectionPool[Connection]:
    """For who has connected before: wrong credentials would be tried again and again."""
    return ConnectionPool(
        uri,
        min_size=1,
        max_size=size,
        timeout=10.0,
        max_idle=60.0,
        reconnect_timeout=5.0,
        kwargs={
            "connect_timeout": 5,
            "application_name": "holdfast",
            # A worker that hangs inside a transaction must not keep its rows locked. Leases, claims
            # and acks need no fsync: one lost with the server is only done again. What must last
            # sets its own (PostgresResults).
            "options": (
                "-c statement_timeout=30s -c idle_in_transaction_session_timeout=5s -c"
                " synchronous_commit=off"
            ),
        },
        configure=_use_least_role,
        check=ConnectionPool.check_connection,
        open=True,
    )


def _use_least_role(connection: Connection) -> None:
    """An owner's URI is common on a laptop; the worker then still runs as the role that cannot
    DROP.
    """
    connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(WORKER_ROLE)))
    connection.commit()


def permanent(error: Exception) -> InputError | None:
    """What to answer to a refusal that no retry cures; None for every other error."""
    if not isinstance(error, psycopg.Error):
        return None
    state = error.sqlstate or ""
    # A failed login carries no sqlstate in psycopg 3: the server's text is all there is.
    text = str(error)
    refused = "authentication failed" in text or "no password supplied" in text
    unknown = "does not exist" in text and ("role" in text or "database" in text)
    unknown = unknown or ("definition of service" in text and "not found" in text)
    if not (state.startswith(_PERMANENT) or refused or unknown or "no pg_hba.conf entry" in text):
        return None
    return InputError(
        "the database rejects this user",
        got=_first_line(error),
        allowed="a user with the role " + WORKER_ROLE,
        fix="correct user, password, database or service name; retrying does not help",
    )


def explained(error: Exception) -> Exception:
    """Of a command: what its user can do about it. The error itself, where that is nothing."""
    if isinstance(error, errors.InsufficientPrivilege):
        return InputError(
            "the database does not let this user do that",
            got=_first_line(error),
            allowed="a user with the role " + WORKER_ROLE,
            fix="grant it with `python -m holdfast batch database --grant LOGIN="
            + WORKER_ROLE
            + "`",
        )
    if not isinstance(error, (*TRANSIENT, errors.ReadOnlySqlTransaction)):
        return error
    return permanent(error) or Later(
        "the database or the queue cannot do this now",
        got=_first_line(error),
        allowed="a database that answers, can be written and has free space",
        fix="fix that, then run the command again: what it had not finished is not there",
    )


def _first_line(error: Exception) -> str:
    if isinstance(error, psycopg.Error) and (message := error.diag.message_primary):
        return message[:200]
    # A line that begins with a tab is libpq's question about the line before it.
    lines = [line for line in str(error).strip().splitlines() if not line.startswith("\t")]
    return (lines or [type(error).__name__])[-1][:200]
