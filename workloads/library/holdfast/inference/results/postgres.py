"""The results store in PostgreSQL: each result is written once, a micro-batch in one statement.

The key is (job, item, fingerprint); job and fingerprint are set when the store is made. A claim
returns a fence, and only the newest fence of an item can write, so a worker that is taken for dead
cannot. Rows are always locked in the order of their ids, so that two workers with the same items
wait for each other instead of deadlocking.
"""

# Decision: infra/decisions/0040.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.inference.queue.protocol import Lease, Queue
from holdfast.inference.results import jobs

# Row locks of ON CONFLICT last until commit; the UPSERT returns nothing for rows that its WHERE
# excludes. The worker's name is part of the fence: after a crash the server may repeat a sequence
# number.
_CLAIM = """
INSERT INTO holdfast.result AS r (job, item, fingerprint, status, fence, worker)
SELECT %(job)s, i.item, %(fingerprint)s, 'held', nextval('holdfast.fence_number'), %(worker)s
FROM (SELECT DISTINCT unnest(%(items)s::text[]) AS item ORDER BY 1) AS i
ON CONFLICT (job, item, fingerprint) DO UPDATE
SET status = 'held', fence = excluded.fence, worker = excluded.worker,
    claims = r.claims + 1, updated_at = now()
WHERE r.status IN ('held', 'waiting')
RETURNING r.item, r.fence, r.failures
"""

_STORE = """
WITH stored AS (
INSERT INTO holdfast.result AS r (job, item, fingerprint, status, fence, worker, value)
SELECT %(job)s, v.item, %(fingerprint)s, 'done', v.fence, %(worker)s, v.value::jsonb
FROM (
    SELECT * FROM unnest(%(items)s::text[], %(fences)s::bigint[], %(values)s::text[])
        AS u(item, fence, value)
    ORDER BY 1
) AS v
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
    FROM (
        SELECT * FROM unnest(%(items)s::text[], %(fences)s::bigint[], %(classes)s::text[],
                             %(errors)s::text[], %(digests)s::text[])
            AS u(item, fence, error_class, error, digest)
        ORDER BY 1
    ) AS f
    WHERE r.job = %(job)s AND r.fingerprint = %(fingerprint)s AND r.item = f.item
      AND r.fence = f.fence AND r.worker = %(worker)s AND r.status = 'held'
    RETURNING r.item, r.failures, r.status = 'dead' AS dead, f.error_class, f.digest
), dead_lettered AS (
    INSERT INTO holdfast.dead_letter (job, item, fingerprint, digest, reason, failures)
    SELECT %(job)s, item, %(fingerprint)s, digest, error_class, failures FROM counted WHERE dead
)
SELECT item, failures, dead FROM counted
"""

_FAILED_AMONG = """
SELECT r.item, r.failures, r.status = 'dead' FROM holdfast.result r
JOIN unnest(%(items)s::text[], %(fences)s::bigint[]) AS u(item, fence) USING (item, fence)
WHERE r.job = %(job)s AND r.fingerprint = %(fingerprint)s AND r.worker = %(worker)s
  AND r.status IN ('waiting', 'dead')
"""

_REFUSE = """
INSERT INTO holdfast.dead_letter (job, fingerprint, digest, reason, failures)
SELECT %(job)s, %(fingerprint)s, u.digest, u.reason, 0
FROM unnest(%(digests)s::text[], %(reasons)s::text[]) AS u(digest, reason)
"""

_GIVE_BACK = """
UPDATE holdfast.result r SET status = 'waiting', updated_at = now()
FROM (
    SELECT * FROM unnest(%(items)s::text[], %(fences)s::bigint[]) AS u(item, fence) ORDER BY 1
) AS g
WHERE r.job = %(job)s AND r.fingerprint = %(fingerprint)s AND r.item = g.item
  AND r.fence = g.fence AND r.worker = %(worker)s AND r.status = 'held'
"""

# Sets this transaction only: the pool's connections do not wait for the disk.
_DURABLE = "SET LOCAL synchronous_commit = on"

_DONE_AMONG = """
SELECT item FROM holdfast.result
WHERE job = %(job)s AND fingerprint = %(fingerprint)s AND item = ANY(%(items)s) AND status = 'done'
"""

# The workers' counts come first, as they cost nothing; rows are counted once those reach the total.
_MAY_BE_DRAINED = """
SELECT backlog_items = 0 FROM holdfast.job_scaling WHERE job = %(job)s
"""

_DRAINED = """
SELECT (SELECT total FROM holdfast.job WHERE job = %(job)s)
    <= (SELECT count(*) FROM holdfast.result
        WHERE job = %(job)s AND fingerprint = %(fingerprint)s AND status IN ('done', 'dead'))
"""


_ALIVE = """
INSERT INTO holdfast.worker (worker, job, fingerprint, load_seconds)
VALUES (%(worker)s, %(job)s, %(fingerprint)s, %(load_s)s)
ON CONFLICT (worker) DO UPDATE SET seen_at = now()
"""

_ENDED = "UPDATE holdfast.worker SET ended = %(how)s, seen_at = now() WHERE worker = %(worker)s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The right to write one item, until the next claim of it."""

    item: str
    fence: int
    failures: int = field(default=0, compare=False)
    """The number of processing failures of the item so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    claim: Claim
    error_class: str
    message: str
    """The redacted message, without content of the item."""
    digest: str


class PostgresResults:
    def __init__(
        self,
        pool: ConnectionPool[Connection],
        *,
        job: str,
        fingerprint: str,
        worker: str,
        load_s: float = 0.0,
    ) -> None:
        """Makes the store of one worker, which took `load_s` to load its model."""
        self._pool = pool
        self._load_s = load_s
        self._key = {
            "job": job,
            "fingerprint": fingerprint,
            "worker": worker,
        }

    def claim(self, items: Sequence[str]) -> dict[str, Claim]:
        """Claims the items that are neither done nor dead; returns the claims by item."""
        claims: dict[str, Claim] = {}
        for item, fence, failures in self._execute(_CLAIM, items=list(items)):
            claims[item] = Claim(item=item, fence=fence, failures=failures)
        return claims

    def store(self, values: Mapping[Claim, str]) -> tuple[set[str], set[str]]:
        """Stores encoded values in one transaction; repeating it after an error is safe.

        Returns the committed items, which may be acked, and the items that another worker has
        claimed meanwhile and will write.
        """
        items = [claim.item for claim in values]
        fences = [claim.fence for claim in values]
        rows = self._execute(
            _STORE,
            durable=True,
            items=items,
            fences=fences,
            values=list(values.values()),
        )
        done = {item for (item,) in rows}
        missing = [item for item in items if item not in done]
        if missing:
            # An earlier try whose response was lost has stored them, or another worker has them.
            done |= {item for (item,) in self._execute(_DONE_AMONG, items=missing)}
        return done, set(items) - done

    def fail(
        self, failures: Sequence[Failure], max_failures: int
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Counts failures; the last allowed one makes an item dead and writes its dead letter.

        Returns the items that may be tried again and the dead ones, with their failures so far. An
        item that another worker has claimed meanwhile is in neither. Repeating it after an error is
        safe.
        """
        rows = self._execute(
            _FAIL,
            durable=True,
            max_failures=max_failures,
            items=[failure.claim.item for failure in failures],
            fences=[failure.claim.fence for failure in failures],
            classes=[failure.error_class for failure in failures],
            errors=[failure.message for failure in failures],
            digests=[failure.digest for failure in failures],
        )
        counted = {item for item, *_ in rows}
        missing: list[Claim] = []
        for failure in failures:
            if failure.claim.item not in counted:
                missing.append(failure.claim)
        if missing:
            # An earlier try whose response was lost has counted them, or another worker has them.
            rows += self._execute(
                _FAILED_AMONG,
                items=[claim.item for claim in missing],
                fences=[claim.fence for claim in missing],
            )
        retried_items: dict[str, int] = {}
        dead_items: dict[str, int] = {}
        for item, count, is_dead in rows:
            if is_dead:
                dead_items[item] = count
            else:
                retried_items[item] = count
        return retried_items, dead_items

    def reject(self, leases: Sequence[Lease]) -> None:
        """Writes a dead letter for each message that is no item; they are not retried."""
        self._execute(
            _REFUSE,
            digests=[lease.digest for lease in leases],
            reasons=[lease.fault for lease in leases],
        )

    def release_claims(self, claims: Sequence[Claim]) -> None:
        """Releases claims of items that were not computed; this counts as no failure."""
        self._execute(
            _GIVE_BACK,
            items=[claim.item for claim in claims],
            fences=[claim.fence for claim in claims],
        )

    def heartbeat(self) -> None:
        """Records that this worker is alive."""
        self._execute(_ALIVE, load_s=self._load_s)

    def publish_outbox(self, queue: Queue) -> None:
        """Queues items that an interrupted enqueue or redrive left in the outbox."""
        # Few at a time: the server closes connections that are idle in a transaction for 5 s.
        with self._pool.connection() as connection:
            jobs.publish(
                connection,
                queue,
                self._key["job"],
                limit=50,
            )

    def drained(self) -> bool:
        """Returns True if every item of the job is done or dead under this fingerprint."""
        if self._execute(_MAY_BE_DRAINED) != [(True,)]:
            return False
        return self._execute(_DRAINED) == [(True,)]

    def end(self, outcome: str) -> None:
        """Records the end of this worker: complete, preempted or failed."""
        self._execute(_ENDED, how=outcome)

    def _execute(
        self,
        statement: LiteralString,
        *,
        durable: bool = False,
        **columns: object,
    ) -> list[tuple[Any, ...]]:
        """Executes a statement in a transaction of its own; returns its rows."""
        with self._pool.connection() as connection:
            if durable:
                connection.execute(_DURABLE)
            cursor = connection.execute(statement, {**self._key, **columns})
            if cursor.description is None:
                return []
            return cursor.fetchall()
