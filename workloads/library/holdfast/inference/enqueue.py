"""The registration of items: each is queued once, however often a source is enqueued.

All items and their rows in the outbox are registered in one transaction, so an error of the source
or a full database changes nothing. A row is removed when the queue has accepted its item. After a
kill in between, the next publisher publishes the item again: it may be published twice, and is
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
    FROM (
        SELECT DISTINCT ON (item) *
        FROM unnest(%(items)s::text[], %(digests)s::text[], %(bodies)s::bytea[])
            AS u(item, digest, body)
        ORDER BY item
    ) AS v
    ON CONFLICT (job, item) DO NOTHING
    RETURNING item
), queued AS (
    INSERT INTO holdfast.outbox (job, item) SELECT %(job)s, item FROM fresh
), counted AS (
    -- Only if there are new items: the row stays locked, and a starting worker writes it.
    UPDATE holdfast.job SET total = total + (SELECT count(*) FROM fresh)
    WHERE job = %(job)s AND EXISTS (SELECT FROM fresh)
)
SELECT count(*) FROM fresh
"""

# A subquery for each item, and no join: if autovacuum analyzes the table before this transaction
# commits, it counts no rows, and a join would then read the whole table for each chunk.
_CHANGED = """
SELECT v.item FROM unnest(%(items)s::text[], %(digests)s::text[]) AS v(item, digest)
WHERE v.digest <> (
    SELECT i.digest FROM holdfast.item i WHERE i.job = %(job)s AND i.item = v.item
)
LIMIT 1
"""


def enqueue(
    connection: Connection,
    queue: Queue,
    job: str,
    items: Iterable[Item],
    progress: Callable[[int], None] = lambda count: None,
    *,
    deadline: datetime | None = None,
    subscription: str = "",
) -> dict[str, int]:
    """Enqueues items of a job that may be new.

    Returns the number of items, of new ones and of published ones. Raises InputError for an empty
    source, or for two contents with one id.
    """
    # The caller's reads opened a transaction, in which our writes would not be visible.
    connection.commit()
    count = 0
    new_count = 0
    with connection.transaction():
        jobs.register(connection, job, deadline)
        jobs.bind(connection, subscription, job)
        for chunk in split_chunks(items):
            new_count += _register(connection, job, chunk)
            count += len(chunk)
            progress(count)
        if not count:
            raise InputError(
                "the source contains no item",
                got="0 items",
                allowed="at least one",
                fix="check --source",
            )
    return {
        "seen": count,
        "new": new_count,
        "published": jobs.publish(connection, queue, job),
    }


def split_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Splits items into chunks of at most CHUNK_ITEMS and about CHUNK_BYTES."""
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


def _register(
    connection: Connection,
    job: str,
    chunk: Sequence[Item],
) -> int:
    columns = {
        "job": job,
        "items": [item.id for item in chunk],
        "digests": [item.digest for item in chunk],
        "bodies": [item.body for item in chunk],
    }
    row = connection.execute(_REGISTER, columns).fetchone()
    # This also detects two items of the chunk with the same id.
    changed_row = connection.execute(_CHANGED, columns).fetchone()
    if changed_row is not None:
        raise InputError(
            "two items have the same id and different content",
            got=f"{changed_row[0]} in job {job}",
            allowed="one content per id: results are stored by id",
            fix="rename the item, or enqueue the new content as another job",
        )
    return row[0] if row else 0
