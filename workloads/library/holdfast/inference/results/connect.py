"""Connections to the batch database, with bounded waits, least rights and explained errors.

Passwords are in the URI or in PGPASSWORD and are never printed.
"""

import os
import time
from typing import Any

import psycopg
from psycopg import Connection, errors, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

from holdfast.inference.errors import QueueUnavailable
from holdfast.support.errors import InputError, Later, Unjudged
from holdfast.vocabulary.environment import ENV_DATABASE

# Migration 0001 creates this role, which may change rows and has no DDL.
WORKER_ROLE = "holdfast_worker"

# Errors that may end: the server is lost, starting, out of disk or memory, or cannot serialize.
TRANSIENT = (
    # SQLSTATE 08 connection, 53 resources, 57 shutdown, 40 serialization and deadlock
    psycopg.OperationalError,
    psycopg.InterfaceError,  # the connection died between two statements
    errors.InternalError_,
    # The server ended the connection of a process that was stopped in a transaction.
    errors.IdleInTransactionSessionTimeout,
    QueueUnavailable,
)
# SQLSTATE classes of a wrong password and an unknown user or database, which do not end.
_PERMANENT = ("28", "3D", "3F")

# A machine that was lost answers nothing; by default the kernel waits two hours for it.
_LOST_HOST: dict[str, Any] = {
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 60_000,
}


def database_uri(option: str) -> str:
    """Returns the URI of the option or the environment. Raises InputError if it is not valid."""
    uri = option or os.environ.get(ENV_DATABASE, "")
    if not uri.strip():  # libpq would use all of its defaults
        raise InputError(
            "no database is named",
            got="neither --database nor " + ENV_DATABASE,
            allowed="postgresql://USER@HOST/NAME, or what `batch database --dir` prints",
            fix="start one with `holdfast batch database --dir out/db`",
        )
    try:
        conninfo_to_dict(uri)
    except psycopg.ProgrammingError:
        # The message does not repeat the text, which may hold a password.
        raise InputError(
            "the database URI cannot be read",
            got="(hidden)",
            allowed="postgresql://USER@HOST/NAME",
            fix="correct it",
        ) from None
    return uri


def connect(uri: str, *, patience_s: float = 30.0) -> Connection:
    """Opens a connection for a command, and waits for a server that starts.

    Raises InputError for wrong credentials, Unjudged after `patience_s`.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return psycopg.connect(
                uri,
                connect_timeout=5,
                application_name="holdfast",
                **_LOST_HOST,
            )
        except psycopg.OperationalError as error:
            refusal = explain_refusal(error)
            if refusal:
                raise refusal from None
            if time.monotonic() > deadline:
                raise Unjudged(f"the database does not answer: {_first_line(error)}") from None
            time.sleep(0.2)


def open_pool(uri: str, *, size: int = 4) -> ConnectionPool[Connection]:
    """Opens a pool. Connect once before, as a pool retries wrong credentials without end."""
    # A worker that hangs in a transaction must not lock its rows. Leases, claims and acks need no
    # fsync: if one is lost with the server, it is done again. PostgresResults sets its own.
    options = (
        "-c statement_timeout=30s"
        " -c idle_in_transaction_session_timeout=5s"
        " -c synchronous_commit=off"
    )
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
            "options": options,
            **_LOST_HOST,
        },
        configure=_use_least_role,
        check=ConnectionPool.check_connection,
        open=True,
    )


def _use_least_role(connection: Connection) -> None:
    """Switches to the worker's role, which cannot DROP, also if the URI is the owner's."""
    connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(WORKER_ROLE)))
    connection.commit()


def explain_refusal(error: Exception) -> InputError | None:
    """Returns the InputError for a refusal that no retry cures; None for every other error."""
    if not isinstance(error, psycopg.Error) or not _is_refusal(error):
        return None
    return InputError(
        "the database rejects this user",
        got=_first_line(error),
        allowed="a user with the role " + WORKER_ROLE,
        fix="correct user, password, database or service name; retrying does not help",
    )


def _is_refusal(error: psycopg.Error) -> bool:
    state = error.sqlstate or ""
    if state.startswith(_PERMANENT):
        return True
    # In psycopg 3 a failed login has no SQLSTATE, only the server's text.
    text = str(error)
    if "does not exist" in text and ("role" in text or "database" in text):
        return True
    if "definition of service" in text and "not found" in text:
        return True
    phrases = ("authentication failed", "no password supplied", "no pg_hba.conf entry")
    return any(phrase in text for phrase in phrases)


def explain(error: Exception) -> Exception:
    """Returns an error that tells the user of a command what to do, or `error` if there is none."""
    if isinstance(error, errors.InsufficientPrivilege):
        return InputError(
            "the database does not let this user do that",
            got=_first_line(error),
            allowed="a user with the role " + WORKER_ROLE,
            fix=f"grant it with `holdfast batch database --grant LOGIN={WORKER_ROLE}`",
        )
    if not isinstance(error, (*TRANSIENT, errors.ReadOnlySqlTransaction)):
        return error
    return explain_refusal(error) or Later(
        "the database or the queue cannot do this now",
        got=_first_line(error),
        allowed="a database that answers, can be written and has free space",
        fix="fix that, then run the command again; unfinished changes were not saved",
    )


def _first_line(error: Exception) -> str:
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary[:200]
    # A line that begins with a tab is libpq's question about the line before it.
    text = str(error).strip()
    lines = [line for line in text.splitlines() if not line.startswith("\t")]
    if not lines:
        return type(error).__name__
    return lines[-1][:200]
