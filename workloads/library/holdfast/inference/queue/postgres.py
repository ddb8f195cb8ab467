"""The queue in PostgreSQL: SKIP LOCKED for the pull, a lease number for each delivery.

Leases are measured by the database's clock alone, so clocks of workers may jump.
"""

import time
from collections.abc import Callable, Sequence
from typing import LiteralString

from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.inference.items import Item
from holdfast.inference.queue.protocol import Lease

_POLL_S = 0.1

_PULL = """
WITH next AS (
    SELECT message FROM holdfast.queue
    WHERE job = %(job)s AND visible_at <= clock_timestamp()
    ORDER BY visible_at, message LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE holdfast.queue q
    SET visible_at = clock_timestamp() + make_interval(secs => %(lease_s)s),
        lease = nextval('holdfast.lease_number'), deliveries = deliveries + 1
    FROM next WHERE q.message = next.message
    RETURNING q.message, q.lease, q.job, q.item
)
SELECT t.message, t.lease, t.item, i.body
FROM taken t LEFT JOIN holdfast.item i ON i.job = t.job AND i.item = t.item ORDER BY t.message
"""

_EXTEND = """
UPDATE holdfast.queue q SET visible_at = clock_timestamp() + make_interval(secs => %(seconds)s)
FROM (SELECT * FROM unnest(%(messages)s::bigint[], %(leases)s::bigint[]) AS u(message, lease) ORDER BY 1) AS h
WHERE q.message = h.message AND q.lease = h.lease
"""

# Its ack id is an old one from now on: an extension that was under way would hold it for a lease
# more.
_RELEASE = _EXTEND.replace(" SET ", " SET lease = nextval('holdfast.lease_number'), ")

_ACK = """
DELETE FROM holdfast.queue q USING unnest(%(messages)s::bigint[], %(leases)s::bigint[]) AS h(message, lease)
WHERE q.message = h.message AND q.lease = h.lease
"""


class PostgresQueue:
    """Bodies stay in holdfast.item; a message is only a pointer, so it stays narrow.

    `sleep` returns true when there is no more reason to wait: Shutdown.wait does.
    """

    def __init__(
        self,
        pool: ConnectionPool[Connection],
        job: str,
        *,
        lease_s: float,
        sleep: Callable[[float], bool | None] = time.sleep,
    ) -> None:
        self._pool = pool
        self._job = job
        self._lease_s = lease_s
        self._sleep = sleep

    def publish(self, items: Sequence[Item]) -> None:
        with self._pool.connection() as connection:
            connection.execute(
                "INSERT INTO holdfast.queue (job, item) SELECT %s, unnest(%s::text[])",
                (self._job, [item.id for item in items]),
            )

    def pull(self, limit: int, wait_s: float) -> list[Lease]:
        until = time.monotonic() + wait_s
        while True:
            with self._pool.connection() as connection:
                parameters = {
                    "job": self._job,
                    "limit": limit,
                    "lease_s": self._lease_s,
                }
                rows = connection.execute(_PULL, parameters).fetchall()
            if rows or time.monotonic() >= until or self._sleep(_POLL_S):
                return [self._lease(*row) for row in rows]

    def extend(self, leases: Sequence[Lease], seconds: float) -> None:
        self._change(_EXTEND, leases, seconds=seconds)

    def ack(self, leases: Sequence[Lease]) -> None:
        self._change(_ACK, leases)

    def release(self, leases: Sequence[Lease], delay_s: float = 0.0) -> None:
        self._change(_RELEASE, leases, seconds=delay_s)

    def _change(self, statement: LiteralString, leases: Sequence[Lease], **values: float) -> None:
        with self._pool.connection() as connection:
            connection.execute(statement, {**_numbers(leases), **values})

    def _lease(
        self,
        message: int,
        lease: int,
        name: str,
        body: bytes | None,
    ) -> Lease:
        item = None if body is None else Item(job=self._job, id=name, body=body)
        fault = "" if item else "the message names an item that was never enqueued"
        return Lease(ack_id=f"{message}:{lease}", item=item, fault=fault)


def _numbers(leases: Sequence[Lease]) -> dict[str, list[int]]:
    pairs = [lease.ack_id.split(":") for lease in leases]
    return {
        "messages": [int(message) for message, _ in pairs],
        "leases": [int(lease) for _, lease in pairs],
    }
