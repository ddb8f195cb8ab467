"""The register of jobs in PostgreSQL, and the outbox of items that are not queued yet.

A job has one configuration: its first worker pins the fingerprint, and all others must match it.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime

from psycopg import Connection

from holdfast.inference.items import Item, check_job
from holdfast.inference.queue.protocol import Queue
from holdfast.support.errors import InputError
from holdfast.support.values import moment


def fingerprint(configuration: Mapping[str, object]) -> str:
    """Returns a digest of all that determines a result: model commit, predictor, its settings."""
    text = json.dumps(
        configuration,
        sort_keys=True,
        separators=(",", ":"),
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def register(
    connection: Connection,
    job: str,
    deadline: datetime | None = None,
) -> None:
    """Registers the job if it is new; a deadline replaces an earlier one."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO holdfast.job (job) VALUES (%s) ON CONFLICT DO NOTHING",
            (check_job(job),),
        )
        if deadline is not None:
            connection.execute(
                "UPDATE holdfast.job SET deadline = %s WHERE job = %s", (deadline, job)
            )


def parse_deadline(text: str) -> datetime | None:
    """Parses RFC 3339; returns None for an empty text. Raises InputError for any other text."""
    if not text:
        return None
    deadline = moment(text)
    if deadline is None:
        raise InputError(
            "the deadline cannot be read",
            got=text[:60],
            allowed="such as 2026-11-22T06:00:00Z",
            fix="use this form",
        )
    return deadline


def require(connection: Connection, job: str) -> None:
    """Raises InputError if the job is unknown."""
    row = connection.execute(
        "SELECT FROM holdfast.job WHERE job = %s",
        (check_job(job),),
    ).fetchone()
    newest = connection.execute(
        "SELECT job FROM holdfast.job ORDER BY created_at DESC LIMIT 5"
    ).fetchall()
    connection.commit()
    if row is None:
        raise InputError(
            "the job is unknown",
            got=job,
            allowed=", ".join(name for (name,) in newest) or "none yet",
            fix=f"holdfast batch enqueue {job} --source DIR",
        )


def count_items(connection: Connection, job: str) -> tuple[int, int]:
    """Returns the number of items of a registered job, and of those that are not done yet."""
    row = connection.execute(
        "SELECT total, backlog_items FROM holdfast.job JOIN holdfast.job_scaling USING (job)"
        " WHERE job = %s",
        (job,),
    ).fetchone()
    connection.commit()
    assert row is not None, f"job {job} vanished"
    return int(row[0]), int(row[1])


def pin(
    connection: Connection,
    job: str,
    configuration: Mapping[str, object],
) -> str:
    """Returns the fingerprint of the job, which the first worker sets.

    Raises InputError if this worker would compute something else.
    """
    worker_fingerprint = fingerprint(configuration)
    with connection.transaction():
        row = connection.execute(
            "SELECT fingerprint, configuration FROM holdfast.job WHERE job = %s FOR UPDATE",
            (job,),
        ).fetchone()
        assert row is not None, f"job {job} vanished"
        job_fingerprint, job_configuration = row
        if job_fingerprint is not None and job_fingerprint != worker_fingerprint:
            raise InputError(
                "this worker's configuration differs from the job's earlier workers",
                got=_describe_difference(job_configuration, configuration),
                allowed="one configuration per job",
                fix="enqueue the items as another job",
            )
        if job_fingerprint is None:
            connection.execute(
                "UPDATE holdfast.job SET fingerprint = %s, configuration = %s::jsonb WHERE job"
                " = %s",
                (worker_fingerprint, json.dumps(configuration), job),
            )
    return worker_fingerprint


def pinned_configuration(connection: Connection, job: str) -> dict[str, object]:
    """Returns the configuration of the job's first worker; empty if there was none."""
    row = connection.execute(
        "SELECT configuration FROM holdfast.job WHERE job = %s", (job,)
    ).fetchone()
    connection.commit()
    return dict(row[0]) if row and row[0] else {}


def _describe_difference(job: Mapping[str, object], worker: Mapping[str, object]) -> str:
    differences: list[str] = []
    for key in sorted({*job, *worker}):
        job_value = job.get(key)
        worker_value = worker.get(key)
        if job_value != worker_value:
            differences.append(f"{key}={worker_value} (job: {job_value})")
    return ", ".join(differences)[:300]


# A subscription is free again once its job is drained and has no worker: a steady job that is idle
# keeps its own.
_BIND = """
INSERT INTO holdfast.subscription AS s (subscription, job) VALUES (%(subscription)s, %(job)s)
ON CONFLICT (subscription) DO UPDATE SET job = excluded.job, bound_at = now()
WHERE s.job = excluded.job
   OR (NOT EXISTS (SELECT FROM holdfast.job_scaling j WHERE j.job = s.job AND j.backlog_items > 0)
       AND NOT EXISTS (
           SELECT FROM holdfast.worker_time w
           WHERE w.job = s.job AND w.ended IS NULL AND w.alive
       ))
RETURNING job
"""


def bind(connection: Connection, subscription: str, job: str) -> None:
    """Binds a subscription, if there is one. Raises InputError while another job uses it."""
    if not subscription:
        return
    with connection.transaction():
        row = connection.execute(_BIND, {"subscription": subscription, "job": job}).fetchone()
        if row is not None:
            return
        owner_row = connection.execute(
            "SELECT job FROM holdfast.subscription WHERE subscription = %s",
            (subscription,),
        ).fetchone()
    owner = owner_row[0] if owner_row else "another job"
    raise InputError(
        "the subscription is used by another unfinished job",
        got=f"{subscription}, used by {owner}",
        allowed="one job per subscription at a time",
        fix=(
            "wait for that job, or use another topic and subscription (set queue.lanes in the"
            " environment to get more)"
        ),
    )


# Rows that another publisher has locked are skipped: published twice, their items would be computed
# twice. The body is a subquery, so that the outbox is read in the order of its index, whatever the
# statistics of a table say that was filled a moment ago.
_UNPUBLISHED = """
SELECT o.item, (SELECT i.body FROM holdfast.item i WHERE i.job = o.job AND i.item = o.item)
FROM holdfast.outbox o
WHERE o.job = %(job)s ORDER BY o.item LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""


def publish(
    connection: Connection,
    queue: Queue,
    job: str,
    *,
    limit: int = 1000,
) -> int:
    """Queues all registered items that are not queued yet; returns their number."""
    published = 0
    while True:
        with connection.transaction():
            rows = connection.execute(_UNPUBLISHED, {"job": job, "limit": limit}).fetchall()
            if not rows:
                return published
            items = [Item(job=job, id=name, body=body) for name, body in rows]
            queue.publish(items)
            names = [item.id for item in items]
            connection.execute(
                "DELETE FROM holdfast.outbox WHERE job = %s AND item = ANY(%s)", (job, names)
            )
        published += len(rows)
