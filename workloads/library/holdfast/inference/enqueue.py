"""Register items and hand them to the queue, once each: run it again and nothing is added twice.

All items and their rows in the outbox are registered in one transaction: a source that ends badly,
or a database without room, leaves nothing behind. A row goes when the queue has taken its item.
Killed in between, the next publisher publishes it again: at worst an item is published twice and
computed once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from psycopg import Connection

from holdfast.inference.items import Item
from holdfast.inference.queue.protocol import Queue
from holdfast.inference.results import jobs
from holdfast.support.errors import InputError

CHUNK_ITEMS = 1000
CHUNK_BYTES = 8 * 1024 * 1024

_REGISTER = """
WITH fresh AS (
    INSERT INTO holdfast.item (job, item, digest, body)
    SELECT %(job)s, v.item, v.digest, v.body
    FROM (SELECT DISTINCT ON (item) * FROM unnest(%(items)s::text[], %(digests)s::text[], %(bodies)s::bytea[])
          AS u(item, digest, body) ORDER BY item) AS v
    ON CONFLICT (job, item) DO NOTHING
    RETURNING item
), queued AS (
    INSERT INTO holdfast.outbox (job, item) SELECT %(job)s, item FROM fresh
), counted AS (
    -- Only then: the row stays locked to the end, and a worker that starts writes it.
    UPDATE holdfast.job SET total = total + (SELECT count(*) FROM fresh)
    WHERE job = %(job)s AND EXISTS (SELECT FROM fresh)
)
SELECT count(*) FROM fresh
"""

_CHANGED = """
SELECT v.item FROM unnest(%(items)s::text[], %(digests)s::text[]) AS v(item, digest)
JOIN holdfast.item i ON i.job = %(job)s AND i.item = v.item WHERE i.digest <> v.digest LIMIT 1
"""


def enqueue(
    connection: Connection,
    queue: Queue,
    job: str,
    items: Iterable[Item],
    progress: Callable[[int], None] = lambda seen: None,
    *,
    deadline: datetime | None = None,
    subscription: str = "",
) -> dict[str, int]:
    """Of a job that may be new. How many were seen, and are new: the others were there with the
    same content.
    """
    # what the caller has read opened one, and our writes would not be visible in it
    connection.commit()
    seen = new = 0
    with connection.transaction():
        jobs.register(connection, job, deadline)
        jobs.bind(connection, subscription, job)
        for chunk in chunks(items):
            new += _register(connection, job, chunk)
            seen += len(chunk)
            progress(seen)
        if not seen:
            raise InputError(
                "the source contains no item",
                got="0 items",
                allowed="at least one",
                fix="check --source",
            )
    return {
        "seen": seen,
        "new": new,
        "published": jobs.publish(connection, queue, job),
    }


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """By count and by bytes, whichever is full first."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += len(item.body)
        if len(chunk) >= CHUNK_ITEMS or size >= CHUNK_BYTES:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def _register(connection: Connection, job: str, chunk: Sequence[Item]) -> int:
    columns = {
        "job": job,
        "items": [item.id for item in chunk],
        "digests": [item.digest for item in chunk],
        "bodies": [item.body for item in chunk],
    }
    row = connection.execute(_REGISTER, columns).fetchone()
    # Also finds two of this chunk that have one id and two contents.
    changed = connection.execute(_CHANGED, columns).fetchone()
    if changed is not None:
        raise InputError(
            "two items have the same id and different content",
            got=f"{changed[0]} in job {job}",
            allowed="one content per id: results are stored by id",
            fix="rename the item, or enqueue the new content as another job",
        )
    return row[0] if row else 0
