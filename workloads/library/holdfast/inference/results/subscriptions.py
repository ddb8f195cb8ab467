"""One subscription serves one job at a time (decision 0045).

The register is in the database, not at the broker: no pod needs the right to make or remove subscriptions.
"""

from psycopg import Connection

from holdfast.contract.errors import InputError

# Free again once its job is drained and no worker of it is alive: a steady job that is idle keeps its own.
_BIND = """
INSERT INTO holdfast.subscription AS s (subscription, job) VALUES (%(subscription)s, %(job)s)
ON CONFLICT (subscription) DO UPDATE SET job = excluded.job, bound_at = now()
WHERE s.job = excluded.job
   OR (NOT EXISTS (SELECT FROM holdfast.job_scaling j WHERE j.job = s.job AND j.backlog_items > 0)
       AND NOT EXISTS (SELECT FROM holdfast.worker_time w WHERE w.job = s.job AND w.ended IS NULL AND w.alive))
RETURNING job
"""


def bind(connection: Connection, subscription: str, job: str) -> None:
    """InputError while another job uses it."""
    with connection.transaction():
        row = connection.execute(_BIND, {"subscription": subscription, "job": job}).fetchone()
        if row is not None:
            return
        owner = connection.execute("SELECT job FROM holdfast.subscription WHERE subscription = %s", (subscription,))
        (name,) = owner.fetchone() or ("another job",)
    raise InputError(
        "the subscription is used by another unfinished job",
        got=f"{subscription}, used by {name}",
        allowed="one job per subscription at a time",
        fix="wait for that job, or use another topic and subscription (set queue.lanes in the environment to get more)",
    )
