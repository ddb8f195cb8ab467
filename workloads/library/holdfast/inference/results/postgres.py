"""The results store in PostgreSQL. Statements are set-based: one for a micro-batch, whatever its size.

Rows are always taken in the order of their ids, so two workers with the same items wait for each
other instead of deadlocking.
"""

from collections.abc import Mapping, Sequence

from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.inference.queue.protocol import Lease
from holdfast.inference.results.protocol import Claim, Failure, FailureCounts, Stored

# Row locks of ON CONFLICT live until commit; the UPSERT returns nothing for rows its WHERE refuses.
# The worker's name is part of the fence: a server that crashed may hand out a sequence number again.
_CLAIM = """
INSERT INTO holdfast.result AS r (job, item, fingerprint, status, fence, worker)
SELECT %(job)s, i.item, %(fingerprint)s, 'held', nextval('holdfast.fence_number'), %(worker)s
FROM (SELECT DISTINCT unnest(%(items)s::text[]) AS item ORDER BY 1) AS i
ON CONFLICT (job, item, fingerprint) DO UPDATE
SET status = 'held', fence = excluded.fence, worker = excluded.worker, claims = r.claims + 1, updated_at = now()
WHERE r.status IN ('held', 'waiting')
RETURNING r.item, r.fence, r.failures
"""

_STORE = """
WITH stored AS (
INSERT INTO holdfast.result AS r (job, item, fingerprint, status, fence, worker, value)
SELECT %(job)s, v.item, %(fingerprint)s, 'done', v.fence, %(worker)s, v.value::jsonb
FROM (SELECT * FROM unnest(%(items)s::text[], %(fences)s::bigint[], %(values)s::text[]) AS u(item, fence, value)
      ORDER BY 1) AS v
ON CONFLICT (job, item, fingerprint) DO UPDATE
SET status = 'done', value = excluded.value, updated_at = now()
WHERE r.fence = excluded.fence AND r.worker = excluded.worker AND r.status = 'held'
RETURNING r.item
), counted AS (
INSERT INTO holdfast.worker AS w (worker, job, fingerprint, done)
SELECT %(worker)s, %(job)s, %(fingerprint)s, count(*) FROM stored
ON CONFLICT (worker) DO UPDATE SET done = w.done + excluded.done
)
SELECT item FROM stored
"""

_FAIL = """
WITH counted AS (
    UPDATE holdfast.result r
    SET failures = r.failures + 1, error_class = f.error_class, error = f.error, updated_at = now(),
        status = CASE WHEN r.failures + 1 >= %(max_failures)s THEN 'dead' ELSE 'waiting' END
    FROM (SELECT * FROM unnest(%(items)s::text[], %(fences)s::bigint[], %(classes)s::text[], %(errors)s::text[],
          %(digests)s::text[]) AS u(item, fence, error_class, error, digest) ORDER BY 1) AS f
    WHERE r.job = %(job)s AND r.fingerprint = %(fingerprint)s AND r.item = f.item
      AND r.fence = f.fence AND r.worker = %(worker)s AND r.status = 'held'
    RETURNING r.item, r.failures, r.status = 'dead' AS dead, f.error_class, f.digest
), dead_lettered AS (
    INSERT INTO holdfast.dead_letter (job, item, fingerprint, digest, reason, failures)
    SELECT %(job)s, item, %(fingerprint)s, digest, error_class, failures FROM counted WHERE dead
)
SELECT item, failures, dead FROM counted
"""

_REFUSE = """
INSERT INTO holdfast.dead_letter (job, fingerprint, digest, reason, failures)
SELECT %(job)s, %(fingerprint)s, u.digest, u.reason, 0
FROM unnest(%(digests)s::text[], %(reasons)s::text[]) AS u(digest, reason)
"""

_GIVE_BACK = """
UPDATE holdfast.result r SET status = 'waiting', updated_at = now()
FROM (SELECT * FROM unnest(%(items)s::text[], %(fences)s::bigint[]) AS u(item, fence) ORDER BY 1) AS g
WHERE r.job = %(job)s AND r.fingerprint = %(fingerprint)s AND r.item = g.item
  AND r.fence = g.fence AND r.worker = %(worker)s AND r.status = 'held'
"""

# For this transaction: the pool's connections do not wait for the disk.
_DURABLE = "SET LOCAL synchronous_commit = on"

_DONE_AMONG = """
SELECT item FROM holdfast.result
WHERE job = %(job)s AND fingerprint = %(fingerprint)s AND item = ANY(%(items)s) AND status = 'done'
"""

# The workers' own counts first: they cost nothing. Once they reach the total, the rows are counted.
_MAY_BE_DRAINED = """
SELECT backlog_items = 0 FROM holdfast.job_scaling WHERE job = %(job)s
"""

_DRAINED = """
SELECT (SELECT total FROM holdfast.job WHERE job = %(job)s)
    <= (SELECT count(*) FROM holdfast.result
        WHERE job = %(job)s AND fingerprint = %(fingerprint)s AND status IN ('done', 'dead'))
"""


class PostgresResults:
    def __init__(
        self,
        pool: ConnectionPool[Connection],
        *,
        job: str,
        fingerprint: str,
        worker: str,
        max_failures: int,
        load_s: float = 0.0,
    ) -> None:
        """`load_s`: what the worker took until its model was loaded; paid for like the rest."""
        self._pool, self._max_failures, self._load_s = pool, max_failures, load_s
        self._key = {"job": job, "fingerprint": fingerprint, "worker": worker}

    def claim(self, items: Sequence[str]) -> dict[str, Claim]:
        with self._pool.connection() as connection:
            rows = connection.execute(_CLAIM, {**self._key, "items": list(items)}).fetchall()
        return {item: Claim(item=item, fence=fence, failures=failures) for item, fence, failures in rows}

    def store(self, values: Mapping[Claim, str]) -> Stored:
        items = [claim.item for claim in values]
        parameters = {
            **self._key,
            "items": items,
            "fences": [claim.fence for claim in values],
            "values": list(values.values()),
        }
        with self._pool.connection() as connection:
            connection.execute(_DURABLE)
            done = {item for (item,) in connection.execute(_STORE, parameters).fetchall()}
            if missing := [item for item in items if item not in done]:
                # Stored before (the answer of an earlier try was lost), or taken over by another worker.
                rows = connection.execute(_DONE_AMONG, {**self._key, "items": missing}).fetchall()
                done |= {item for (item,) in rows}
        return Stored(done=frozenset(done), stale=frozenset(items) - done)

    def fail(self, failures: Sequence[Failure]) -> FailureCounts:
        parameters = {
            **self._key,
            "max_failures": self._max_failures,
            "items": [f.claim.item for f in failures],
            "fences": [f.claim.fence for f in failures],
            "classes": [f.error_class for f in failures],
            "errors": [f.message for f in failures],
            "digests": [f.digest for f in failures],
        }
        with self._pool.connection() as connection:
            connection.execute(_DURABLE)
            rows = connection.execute(_FAIL, parameters).fetchall()
        return FailureCounts(
            retry={item: count for item, count, dead in rows if not dead},
            dead={item: count for item, count, dead in rows if dead},
        )

    def reject(self, leases: Sequence[Lease]) -> None:
        columns = {"digests": [lease.digest for lease in leases], "reasons": [lease.fault for lease in leases]}
        with self._pool.connection() as connection:
            connection.execute(_REFUSE, {**self._key, **columns})

    def release_claims(self, claims: Sequence[Claim]) -> None:
        parameters = {**self._key, "items": [c.item for c in claims], "fences": [c.fence for c in claims]}
        with self._pool.connection() as connection:
            connection.execute(_GIVE_BACK, parameters)

    def heartbeat(self) -> None:
        with self._pool.connection() as connection:
            connection.execute(
                "INSERT INTO holdfast.worker (worker, job, fingerprint, load_seconds)"
                " VALUES (%(worker)s, %(job)s, %(fingerprint)s, %(load_s)s)"
                " ON CONFLICT (worker) DO UPDATE SET seen_at = now()",
                {**self._key, "load_s": self._load_s},
            )

    def drained(self) -> bool:
        with self._pool.connection() as connection:
            row = connection.execute(_MAY_BE_DRAINED, self._key).fetchone()
            if row and row[0]:
                row = connection.execute(_DRAINED, self._key).fetchone()
        return bool(row and row[0])

    def end(self, how: str) -> None:
        with self._pool.connection() as connection:
            connection.execute(
                "UPDATE holdfast.worker SET ended = %(how)s, seen_at = now() WHERE worker = %(worker)s",
                {**self._key, "how": how},
            )
