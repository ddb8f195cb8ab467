"""Where a job stands, read from the view holdfast.job_status, which dashboards read too."""

from dataclasses import dataclass, fields
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row

from workloads.inference import jobs

SCHEMA = "holdfast.batch-status/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    job: str
    fingerprint: str | None
    total: int
    done: int
    held: int
    failed: int
    """Dead: every allowed try of the processing failed."""
    waiting: int
    retried: int
    """Items claimed more than once, for whatever reason."""
    failures: int
    workers: int
    """Seen in the last 30 s and not ended."""
    preempted: int
    killed: int
    """Ended without a word."""
    rate: float
    """Items done a second over the last minute."""
    eta_seconds: float | None
    worker_seconds: float
    oldest_seconds: float
    replicas_wanted: int

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def cost_per_1000(self, price_per_hour: float) -> float | None:
        """Dollars, from the seconds that workers lived."""
        return price_per_hour * self.worker_seconds / 3.6 / self.done if self.done else None


def read_status(connection: Connection, job: str) -> Status:
    jobs.require(connection, job)
    with connection.transaction(), connection.cursor(row_factory=class_row(Status)) as cursor:
        found = cursor.execute("SELECT * FROM holdfast.job_status WHERE job = %s", (job,)).fetchone()
    assert found is not None, job
    return found


def table(status: Status) -> str:
    """Two columns of text, for people."""
    rows = [(f.name, _text(getattr(status, f.name))) for f in fields(status)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return "-" if value is None else str(value)
