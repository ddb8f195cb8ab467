"""The queue in PostgreSQL: SKIP LOCKED for pulls, a lease number for each delivery.

Only the database's clock measures leases, so clocks of workers may jump.
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
FROM (
    SELECT * FROM unnest(%(messages)s::bigint[], %(leases)s::bigint[]) AS u(message, lease)
    ORDER BY 1
) AS h
WHERE q.message = h.message AND q.lease = h.lease
"""

# The new lease number makes the ack id an old one: otherwise an extension in progress would delay
# the message by another lease.
_RELEASE = _EXTEND.replace(" SET ", " SET lease = nextval('holdfast.lease_number'), ")

_ACK = """
DELETE FROM holdfast.queue q
USING unnest(%(messages)s::bigint[], %(leases)s::bigint[]) AS h(message, lease)
WHERE q.message = h.message AND q.lease = h.lease
"""


class PostgresQueue:
    """Stores a message as a pointer; bodies are in holdfast.item.

    `sleep` returns True if there is no reason to wait longer, as Shutdown.wait does.
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
        names = [item.id for item in items]
        with self._pool.connection() as connection:
            connection.execute(
                "INSERT INTO holdfast.queue (job, item) SELECT %s, unnest(%s::text[])",
                (self._job, names),
            )

    def pull(self, limit: int, wait_s: float) -> list[Lease]:
        deadline = time.monotonic() + wait_s
        parameters = {
            "job": self._job,
            "limit": limit,
            "lease_s": self._lease_s,
        }
        while True:
            with self._pool.connection() as connection:
                rows = connection.execute(_PULL, parameters).fetchall()
            if rows or time.monotonic() >= deadline or self._sleep(_POLL_S):
                return [self._make_lease(*row) for row in rows]

    def extend(self, leases: Sequence[Lease], seconds: float) -> None:
        self._change(_EXTEND, leases, seconds=seconds)

    def ack(self, leases: Sequence[Lease]) -> None:
        self._change(_ACK, leases)

    def release(self, leases: Sequence[Lease], delay_s: float = 0.0) -> None:
        self._change(_RELEASE, leases, seconds=delay_s)

    def _change(self, statement: LiteralString, leases: Sequence[Lease], **values: float) -> None:
        with self._pool.connection() as connection:
            connection.execute(statement, {**_parse_ack_ids(leases), **values})

    def _make_lease(
        self,
        message: int,
        lease: int,
        name: str,
        body: bytes | None,
    ) -> Lease:
        ack_id = f"{message}:{lease}"
        if body is None:
            fault = "the message names an item that was never enqueued"
            return Lease(ack_id=ack_id, item=None, fault=fault)
        item = Item(job=self._job, id=name, body=body)
        return Lease(ack_id=ack_id, item=item)


def _parse_ack_ids(leases: Sequence[Lease]) -> dict[str, list[int]]:
    messages: list[int] = []
    numbers: list[int] = []
    for lease in leases:
        message, number = lease.ack_id.split(":")
        messages.append(int(message))
        numbers.append(int(number))
    return {"messages": messages, "leases": numbers}
