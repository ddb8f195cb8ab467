"""Forwards dead letters to a Pub/Sub topic, from the table that is their outbox. At least once.

Called by the worker's door when a dead-letter topic is named: at its start and at its end, so that
letters whose writer was killed are forwarded by the next worker.
"""

import json

from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.inference.queue.pubsub import Publisher

_CHUNK = 500

_UNSENT = """
SELECT letter, item, digest, reason, failures FROM holdfast.dead_letter
WHERE job = %s AND NOT forwarded ORDER BY letter LIMIT %s FOR UPDATE SKIP LOCKED
"""


def forward(pool: ConnectionPool[Connection], publisher: Publisher, topic: str, job: str) -> int:
    forwarded = 0
    while True:
        with pool.connection() as connection:
            rows = connection.execute(_UNSENT, (job, _CHUNK)).fetchall()
            if not rows:
                return forwarded
            sent = [publisher.publish(topic, _letter(job, *row[1:]), job=job) for row in rows]
            for future in sent:
                future.result(timeout=60.0)
            numbers = [row[0] for row in rows]
            connection.execute("UPDATE holdfast.dead_letter SET forwarded = true WHERE letter = ANY(%s)", (numbers,))
        forwarded += len(rows)


def _letter(job: str, item: str | None, digest: str, reason: str, failures: int) -> bytes:
    letter = {"v": 1, "job": job, "item": item, "digest": digest, "reason": reason, "failures": failures}
    return json.dumps(letter).encode()
