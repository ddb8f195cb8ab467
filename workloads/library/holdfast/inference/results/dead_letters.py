"""Dead letters: listed for people, forwarded to a Pub/Sub topic.

The table is their outbox, so they are forwarded at least once: those whose writer was killed, by the next worker.
"""

import json

from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.inference.queue.pubsub import Publisher
from holdfast.inference.results import jobs

_CHUNK = 500

_UNSENT = """
SELECT letter, item, digest, reason, failures FROM holdfast.dead_letter
WHERE job = %s AND NOT forwarded ORDER BY letter LIMIT %s FOR UPDATE SKIP LOCKED
"""


def newest(connection: Connection, job: str, limit: int) -> list[dict[str, object]]:
    """The newest first: no content, only which, why and how often."""
    jobs.require(connection, job)
    query = (
        "SELECT item, digest, reason, failures, created_at::text FROM holdfast.dead_letter"
        " WHERE job = %s ORDER BY letter DESC LIMIT %s"
    )
    rows = connection.execute(query, (job, limit)).fetchall()
    names = ("item", "digest", "reason", "failures", "at")
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
