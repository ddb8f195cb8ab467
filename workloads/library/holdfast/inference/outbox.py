"""The outbox: items that the queue does not hold yet. A row goes when the queue has taken the item.

Killed in between, whoever is next publishes the row again; at worst an item is published twice and computed once.
"""

from collections.abc import Sequence

from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.inference.items import Item
from holdfast.inference.queue.protocol import Queue

CHUNK_ITEMS = 1000

# Rows that another publisher has in hand are its own: published by both, they would be computed by two workers.
_LEFT = """
SELECT o.item, i.body FROM holdfast.outbox o JOIN holdfast.item i USING (job, item)
WHERE o.job = %(job)s ORDER BY o.item LIMIT %(limit)s FOR UPDATE OF o SKIP LOCKED
"""

_HAND_OVER = """
WITH known AS (
    SELECT i.job, i.item FROM unnest(%(jobs)s::text[], %(items)s::text[]) AS u(job, item)
    JOIN holdfast.item i ON i.job = u.job AND i.item = u.item
), queued AS (
    INSERT INTO holdfast.outbox (job, item) SELECT DISTINCT job, item FROM known ORDER BY 1, 2 ON CONFLICT DO NOTHING
)
SELECT job, item FROM known
"""


def publish(connection: Connection, queue: Queue, job: str, *, limit: int = CHUNK_ITEMS) -> int:
    """Hand over whatever is registered and not yet queued; returns how many."""
    published = 0
    while True:
        with connection.transaction():
            rows = connection.execute(_LEFT, {"job": job, "limit": limit}).fetchall()
            if not rows:
                return published
            queue.publish([Item(job=job, id=name, body=body) for name, body in rows])
            names = [name for name, _ in rows]
            connection.execute("DELETE FROM holdfast.outbox WHERE job = %s AND item = ANY(%s)", (job, names))
        published += len(rows)


def hand_over(pool: ConnectionPool[Connection], items: Sequence[Item]) -> set[tuple[str, str]]:
    """Items of other jobs into their outboxes; returns (job, id) of those that this database knows."""
    columns = {"jobs": [item.job for item in items], "items": [item.id for item in items]}
    with pool.connection() as connection:
        return set(connection.execute(_HAND_OVER, columns).fetchall())
