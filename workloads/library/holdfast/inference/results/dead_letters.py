"""Dead letters: a list for people, and the return of their items to the queue."""

from psycopg import Connection

from holdfast.inference.queue.protocol import Queue
from holdfast.inference.results import jobs
from holdfast.support.errors import InputError


def list_newest(
    connection: Connection,
    job: str,
    limit: int,
) -> list[dict[str, object]]:
    """Lists dead letters, newest first, without content; the message is redacted.

    Letters stay when their item is tried again, since a worker may delete none: an item that is not
    dead has no letter here, and one that died again has its newest.
    """
    jobs.require(connection, job)
    query = (
        "SELECT d.item, d.digest, d.reason, d.failures, d.created_at::text, coalesce(r.error, '')"
        " FROM holdfast.dead_letter d LEFT JOIN holdfast.result r USING (job, item, fingerprint)"
        " WHERE d.job = %s AND coalesce(r.status, 'dead') = 'dead' AND NOT EXISTS (SELECT FROM"
        " holdfast.dead_letter n WHERE n.job = d.job AND n.item = d.item AND n.letter > d.letter)"
        " ORDER BY d.letter DESC LIMIT %s"
    )
    rows = connection.execute(query, (job, limit)).fetchall()
    names = ("item", "digest", "reason", "failures", "at", "message")
    return [dict(zip(names, row, strict=True)) for row in rows]


_REVIVE = """
WITH revived AS (
    UPDATE holdfast.result r SET status = 'waiting', failures = 0, updated_at = now()
    FROM holdfast.job j
    WHERE j.job = %(job)s AND r.job = j.job AND r.fingerprint = j.fingerprint AND r.status = 'dead'
      AND (%(items)s::text[] IS NULL OR r.item = ANY(%(items)s))
    RETURNING r.job, r.item
), queued AS (
    INSERT INTO holdfast.outbox (job, item)
    SELECT v.job, v.item FROM revived v JOIN holdfast.item i USING (job, item)
    ON CONFLICT DO NOTHING
)
SELECT item FROM revived ORDER BY item
"""

_QUEUE_AGAIN = """
INSERT INTO holdfast.outbox (job, item)
SELECT i.job, i.item FROM holdfast.item i JOIN holdfast.job j USING (job)
LEFT JOIN holdfast.result r ON r.job = i.job AND r.item = i.item AND r.fingerprint = j.fingerprint
WHERE i.job = %(job)s AND i.item = ANY(%(items)s) AND r.status IS DISTINCT FROM 'done'
ON CONFLICT (job, item) DO UPDATE SET item = excluded.item RETURNING item
"""


def redrive(
    connection: Connection,
    queue: Queue,
    job: str,
    items: list[str],
    subscription: str = "",
) -> list[str]:
    """Puts dead items back into the queue, and returns their ids.

    Named items that are not done are queued too: Pub/Sub may have dropped them, and no row shows
    that. Raises InputError for items that are done or unknown.
    """
    jobs.require(connection, job)
    jobs.bind(connection, subscription, job)
    with connection.transaction():
        dead_rows = connection.execute(_REVIVE, {"job": job, "items": items or None}).fetchall()
        lost_rows = connection.execute(_QUEUE_AGAIN, {"job": job, "items": items}).fetchall()
        revived = sorted({str(item) for (item,) in dead_rows + lost_rows})
        unknown = sorted(set(items) - set(revived))
        if unknown:
            raise InputError(
                "the item is done, or not of this job",
                got=", ".join(unknown)[:200],
                allowed="ids that `batch failures` lists, and ids of items without a result",
                fix="omit --item to requeue all failed items",
            )
    jobs.publish(connection, queue, job)
    return revived
