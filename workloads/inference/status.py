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

    def to_json(self, price_per_hour: float = 0.0) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"schema": SCHEMA, **values, "cost_per_1000": self.cost_per_1000(price_per_hour)}

    def cost_per_1000(self, price_per_hour: float) -> float | None:
        """Dollars, from the seconds that workers lived."""
        if not price_per_hour or not self.done:
            return None
        return price_per_hour * self.worker_seconds / 3600 / self.done * 1000


def read_status(connection: Connection, job: str) -> Status:
    jobs.require(connection, job)
    with connection.transaction(), connection.cursor(row_factory=class_row(Status)) as cursor:
        found = cursor.execute("SELECT * FROM holdfast.job_status WHERE job = %s", (job,)).fetchone()
    assert found is not None, job
    return found


def table(status: Status, price_per_hour: float = 0.0) -> str:
    """Two columns of text, for people."""
    rows = [(name, _text(value)) for name, value in status.to_json(price_per_hour).items() if name != "schema"]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1 else f"{value:,.1f}"
    return "-" if value is None else str(value)
