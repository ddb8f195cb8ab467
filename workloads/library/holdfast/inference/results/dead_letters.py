"""Dead letters: listed for people, forwarded to a Pub/Sub topic.

The table is their outbox, so they are forwarded at least once: those whose writer was killed, by the next worker.
"""

import json
from collections.abc import Sequence

from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.contract.errors import InputError
from holdfast.inference.queue.pubsub import Publisher
from holdfast.inference.results import jobs

_CHUNK = 500

_UNSENT = """
SELECT letter, item, digest, reason, failures FROM holdfast.dead_letter
WHERE job = %s AND NOT forwarded ORDER BY letter LIMIT %s FOR UPDATE SKIP LOCKED
"""


def newest(connection: Connection, job: str, limit: int) -> list[dict[str, object]]:
    """The newest first: no content, only which, why and how often. The message is redacted."""
    jobs.require(connection, job)
    query = (
        "SELECT d.item, d.digest, d.reason, d.failures, d.created_at::text, coalesce(r.error, '')"
        " FROM holdfast.dead_letter d LEFT JOIN holdfast.result r USING (job, item, fingerprint)"
        " WHERE d.job = %s ORDER BY d.letter DESC LIMIT %s"
    )
    rows = connection.execute(query, (job, limit)).fetchall()
    names = ("item", "digest", "reason", "failures", "at", "message")
    return [dict(zip(names, row, strict=True)) for row in rows]


def forward(pool: ConnectionPool[Connection], publisher: Publisher, topic: str, job: str) -> int:
    forwarded = 0
    while True:
        with pool.connection() as connection:
            rows = connection.execute(_UNSENT, (job, _CHUNK)).fetchall()
            if not rows:
                return forwarded
            sent = [publisher.publish(topic, _message(job, *row[1:]), job=job) for row in rows]
            for future in sent:
                future.result(timeout=60.0)
            numbers = [row[0] for row in rows]
            connection.execute("UPDATE holdfast.dead_letter SET forwarded = true WHERE letter = ANY(%s)", (numbers,))
        forwarded += len(rows)


def _message(job: str, item: str | None, digest: str, reason: str, failures: int) -> bytes:
    fields = {"v": 1, "job": job, "item": item, "digest": digest, "reason": reason, "failures": failures}
    return json.dumps(fields).encode()


_REVIVE = """
WITH revived AS (
    UPDATE holdfast.result r SET status = 'waiting', failures = 0, updated_at = now()
    FROM holdfast.job j
    WHERE j.job = %(job)s AND r.job = j.job AND r.fingerprint = j.fingerprint AND r.status = 'dead'
      AND (%(items)s::text[] IS NULL OR r.item = ANY(%(items)s))
    RETURNING r.job, r.item
), queued AS (
    INSERT INTO holdfast.outbox (job, item)
    SELECT v.job, v.item FROM revived v JOIN holdfast.item i USING (job, item) ON CONFLICT DO NOTHING
), removed AS (
    DELETE FROM holdfast.dead_letter d USING revived v WHERE d.job = v.job AND d.item = v.item
)
SELECT item FROM revived ORDER BY item
"""

_QUEUE_AGAIN = """
INSERT INTO holdfast.outbox (job, item)
SELECT i.job, i.item FROM holdfast.item i JOIN holdfast.job j USING (job)
LEFT JOIN holdfast.result r ON r.job = i.job AND r.item = i.item AND r.fingerprint = j.fingerprint
WHERE i.job = %(job)s AND i.item = ANY(%(items)s) AND r.status IS DISTINCT FROM 'done' ON CONFLICT DO NOTHING
"""


def redrive(connection: Connection, job: str, items: list[str] | None) -> list[str]:
    """Dead items of the job back into its outbox, in one transaction; the caller publishes the outbox."""
    jobs.require(connection, job)
    with connection.transaction():
        rows = connection.execute(_REVIVE, {"job": job, "items": items or None}).fetchall()
        revived = [item for (item,) in rows]
        if items and (others := sorted(set(items) - set(revived))):
            raise InputError(
                "the item has not failed",
                got=", ".join(others)[:200],
                allowed="ids that `batch failures` lists",
                fix="omit --item to requeue all failed items",
            )
    return revived


def queue_again(connection: Connection, job: str, items: Sequence[str]) -> None:
    """Items that no queue holds any more into the outbox, wherever they are not done."""
    with connection.transaction():
        connection.execute(_REVIVE, {"job": job, "items": list(items)})
        connection.execute(_QUEUE_AGAIN, {"job": job, "items": list(items)})
