"""The register of jobs in PostgreSQL, and the outbox of what their queue has not taken yet.

A job is computed under one configuration: its first worker pins the fingerprint, others must match.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime

from psycopg import Connection

from holdfast.inference.items import Item, checked_job
from holdfast.inference.queue.protocol import Queue
from holdfast.support.errors import InputError
from holdfast.support.values import moment


def fingerprint(configuration: Mapping[str, object]) -> str:
    """Of everything that decides a result: model commit, predictor, its settings."""
    text = json.dumps(configuration, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def register(connection: Connection, job: str, deadline: datetime | None = None) -> None:
    """Make the job where it is new; a deadline, where given, replaces an earlier one."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO holdfast.job (job) VALUES (%s) ON CONFLICT DO NOTHING", (checked_job(job),)
        )
        if deadline is not None:
            connection.execute(
                "UPDATE holdfast.job SET deadline = %s WHERE job = %s", (deadline, job)
            )


def deadline_of(text: str) -> datetime | None:
    """RFC 3339, as in HOLDFAST_DEADLINE; empty: none."""
    if not text:
        return None
    when = moment(text)
    if when is None:
        raise InputError(
            "the deadline cannot be read",
            got=text[:60],
            allowed="such as 2026-11-22T06:00:00Z",
            fix="use this form",
        )
    return when


def require(connection: Connection, job: str) -> None:
    """InputError when it is unknown."""
    row = connection.execute(
        "SELECT FROM holdfast.job WHERE job = %s", (checked_job(job),)
    ).fetchone()
    known = connection.execute(
        "SELECT job FROM holdfast.job ORDER BY created_at DESC LIMIT 5"
    ).fetchall()
    connection.commit()
    if row is None:
        raise InputError(
            "the job is unknown",
            got=job,
            allowed=", ".join(name for (name,) in known) or "none yet",
            fix=f"python -m holdfast batch enqueue {job} --source DIR",
        )


def pin(connection: Connection, job: str, configuration: Mapping[str, object]) -> str:
    """The job's fingerprint. The first worker sets it; one that would compute something else is
    refused.
    """
    mine = fingerprint(configuration)
    with connection.transaction():
        row = connection.execute(
            "SELECT fingerprint, configuration FROM holdfast.job WHERE job = %s FOR UPDATE", (job,)
        ).fetchone()
        assert row is not None, f"job {job} vanished"
        pinned, before = row
        if pinned is not None and pinned != mine:
            raise InputError(
                "this worker's configuration differs from the job's earlier workers",
                got=_difference(before, configuration),
                allowed="one configuration per job",
                fix="enqueue the items as another job",
            )
        if pinned is None:
            connection.execute(
                "UPDATE holdfast.job SET fingerprint = %s, configuration = %s::jsonb WHERE job"
                " = %s",
                (mine, json.dumps(configuration), job),
            )
    return mine


def pinned_configuration(connection: Connection, job: str) -> dict[str, object]:
    """Of the job's first worker; empty before there was one."""
    row = connection.execute(
        "SELECT configuration FROM holdfast.job WHERE job = %s", (job,)
    ).fetchone()
    connection.commit()
    return dict(row[0]) if row and row[0] else {}


def _difference(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    keys = sorted(k for k in {*before, *now} if before.get(k) != now.get(k))
    return ", ".join(f"{k}={now.get(k)} (job: {before.get(k)})" for k in keys)[:300]


# Free again once its job is drained and no worker of it is alive: a steady job that is idle keeps
# its own.
_BIND = """
INSERT INTO holdfast.subscription AS s (subscription, job) VALUES (%(subscription)s, %(job)s)
ON CONFLICT (subscription) DO UPDATE SET job = excluded.job, bound_at = now()
WHERE s.job = excluded.job
   OR (NOT EXISTS (SELECT FROM holdfast.job_scaling j WHERE j.job = s.job AND j.backlog_items > 0)
       AND NOT EXISTS (SELECT FROM holdfast.worker_time w WHERE w.job = s.job AND w.ended IS NULL AND w.alive))
RETURNING job
"""


def bind(connection: Connection, subscription: str, job: str) -> None:
    """InputError while another job uses it. Without one there is nothing to bind."""
    if not subscription:
        return
    with connection.transaction():
        row = connection.execute(_BIND, {"subscription": subscription, "job": job}).fetchone()
        if row is not None:
            return
        owner = connection.execute(
            "SELECT job FROM holdfast.subscription WHERE subscription = %s", (subscription,)
        )
        (name,) = owner.fetchone() or ("another job",)
    raise InputError(
        "the subscription is used by another unfinished job",
        got=f"{subscription}, used by {name}",
        allowed="one job per subscription at a time",
        fix=(
            "wait for that job, or use another topic and subscription (set queue.lanes in the"
            " environment to get more)"
        ),
    )


# Rows that another publisher has in hand are its own: published by both, they would be computed by
# two workers.
_LEFT = """
SELECT o.item, i.body FROM holdfast.outbox o JOIN holdfast.item i USING (job, item)
WHERE o.job = %(job)s ORDER BY o.item LIMIT %(limit)s FOR UPDATE OF o SKIP LOCKED
"""


def publish(
    connection: Connection,
    queue: Queue,
    job: str,
    *,
    limit: int = 1000,
) -> int:
    """Queue all registered items that are not queued yet; returns how many."""
    published = 0
    while True:
        with connection.transaction():
            rows = connection.execute(_LEFT, {"job": job, "limit": limit}).fetchall()
            if not rows:
                return published
            queue.publish([Item(job=job, id=name, body=body) for name, body in rows])
            names = [name for name, _ in rows]
            connection.execute(
                "DELETE FROM holdfast.outbox WHERE job = %s AND item = ANY(%s)", (job, names)
            )
        published += len(rows)
