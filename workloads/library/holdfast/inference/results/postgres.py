"""The results store: who may write an item, and that it is written once, by statements over a whole
micro-batch.

The key is (job, item, fingerprint); job and fingerprint are bound when the store is made. A claim
hands out a fence; only the newest fence of an item can write, so a worker thought dead cannot. Rows
are always taken in the order of their ids, so two workers with the same items wait for each other
instead of deadlocking.
"""

from collections.abc import Mapping, Sequence

# Why it is so: infra/decisions/0040.
from dataclasses import dataclass, field
from typing import Any, LiteralString

from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.inference.queue.protocol import Lease, Queue
from holdfast.inference.results import jobs

# Row locks of ON CONFLICT live until commit; the UPSERT returns nothing for rows its WHERE refuses.
# The worker's name is part of the fence: a server that crashed may hand out a sequence number
# again.
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


_ALIVE = """
INSERT INTO holdfast.worker (worker, job, fingerprint, load_seconds)
VALUES (%(worker)s, %(job)s, %(fingerprint)s, %(load_s)s) ON CONFLICT (worker) DO UPDATE SET seen_at = now()
"""

_ENDED = "UPDATE holdfast.worker SET ended = %(how)s, seen_at = now() WHERE worker = %(worker)s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The right to write one item, until the next claim of it."""

    item: str
    fence: int
    failures: int = field(default=0, compare=False)
    """Of its processing, so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    claim: Claim
    error_class: str
    message: str
    """Redacted: holds nothing of the item."""
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
        """`load_s`: what the worker took until its model was loaded; paid for like the rest."""
        self._pool = pool
        self._load_s = load_s
        self._key = {
            "job": job,
            "fingerprint": fingerprint,
            "worker": worker,
        }

    def claim(self, items: Sequence[str]) -> dict[str, Claim]:
        """A claim for each item that is neither done nor dead; the others are missing from the
        answer.
        """
        rows = self._rows(_CLAIM, items=list(items))
        return {
            item: Claim(item=item, fence=fence, failures=failures) for item, fence, failures in rows
        }

    def store(self, values: Mapping[Claim, str]) -> tuple[set[str], set[str]]:
        """Values as `encode_value` made them, in one transaction; again after a lost answer changes
        nothing and answers the same.

        Returns the items that are committed, by this call or by an earlier one, and may be acked;
        and those that another worker has claimed meanwhile and will write.
        """
        items = [claim.item for claim in values]
        fences = [claim.fence for claim in values]
        rows = self._rows(
            _STORE,
            durable=True,
            items=items,
            fences=fences,
            values=list(values.values()),
        )
        done = {item for (item,) in rows}
        missing = [item for item in items if item not in done]
        if missing:
            # Stored before (the answer of an earlier try was lost), or taken over by another
            # worker.
            done |= {item for (item,) in self._rows(_DONE_AMONG, items=missing)}
        return done, set(items) - done

    def fail(
        self, failures: Sequence[Failure], max_failures: int
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count a processing failure of each; the last one allowed makes the item dead and writes
        its dead letter.

        Returns the items that may be tried again, and those that are dead, with their failures so
        far.
        """
        rows = self._rows(
            _FAIL,
            durable=True,
            max_failures=max_failures,
            items=[f.claim.item for f in failures],
            fences=[f.claim.fence for f in failures],
            classes=[f.error_class for f in failures],
            errors=[f.message for f in failures],
            digests=[f.digest for f in failures],
        )
        again = {item: count for item, count, dead in rows if not dead}
        return again, {item: count for item, count, dead in rows if dead}

    def reject(self, leases: Sequence[Lease]) -> None:
        """A dead letter for each message that is no item; they are not tried again."""
        self._rows(
            _REFUSE,
            digests=[lease.digest for lease in leases],
            reasons=[lease.fault for lease in leases],
        )

    def release_claims(self, claims: Sequence[Claim]) -> None:
        """Not computed; counts nothing."""
        self._rows(_GIVE_BACK, items=[c.item for c in claims], fences=[c.fence for c in claims])

    def heartbeat(self) -> None:
        """This worker is alive."""
        self._rows(_ALIVE, load_s=self._load_s)

    def publish_outbox(self, queue: Queue) -> None:
        """What an interrupted enqueue or another job's worker left there is queued again. Few at a
        time: the pool's connections are closed when they are idle in a transaction for 5 s.
        """
        with self._pool.connection() as connection:
            jobs.publish(connection, queue, self._key["job"], limit=50)

    def drained(self) -> bool:
        """Every item of the job is done or dead under this fingerprint."""
        return self._rows(_MAY_BE_DRAINED) == [(True,)] and self._rows(_DRAINED) == [(True,)]

    def end(self, how: str) -> None:
        """This worker ends: complete, preempted or failed."""
        self._rows(_ENDED, how=how)

    def _rows(
        self, statement: LiteralString, *, durable: bool = False, **columns: object
    ) -> list[tuple[Any, ...]]:
        """What one transaction answers."""
        with self._pool.connection() as connection:
            if durable:
                connection.execute(_DURABLE)
            found = connection.execute(statement, {**self._key, **columns})
            return found.fetchall() if found.description else []
