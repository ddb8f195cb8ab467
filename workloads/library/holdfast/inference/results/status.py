"""The progress of a job, read from the view holdfast.job_status, which dashboards read too."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row

from holdfast.inference.results import jobs

SCHEMA = "holdfast.batch-status/2"


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
    """Items claimed more than once, for any reason."""
    failures: int
    workers: int
    """Seen in the last 30 s and not ended."""
    preempted: int
    killed: int
    """Ended without notice."""
    rate: float
    """Items done a second over the last minute."""
    eta_seconds: float | None
    worker_seconds: float
    """Paid for: from the start of each worker, its model's loading included."""
    oldest_seconds: float
    replicas_wanted: int

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)


def read_status(connection: Connection, job: str) -> Status:
    jobs.require(connection, job)
    with connection.transaction(), connection.cursor(row_factory=class_row(Status)) as cursor:
        found = cursor.execute(
            "SELECT * FROM holdfast.job_status WHERE job = %s", (job,)
        ).fetchone()
    assert found is not None, job
    return found


def table(status: Status) -> str:
    """For people; `to_json` has every number."""
    rows = {
        "job": status.job,
        "done": f"{status.done:,} of {status.total:,} ({status.done / max(1, status.total):.1%})",
        "held": f"{status.held:,}",
        "waiting": f"{status.waiting:,}",
        "failed": f"{status.failed:,} for good, {status.failures:,} errors of processing",
        "rate": f"{status.rate:,.1f} items/s over the last minute",
        "time to go": _duration(status.eta_seconds),
        "workers": f"{status.workers} now, {status.replicas_wanted} wanted for the deadline",
        "preempted": (
            f"{status.preempted} with notice, {status.killed} without; {status.retried:,} items"
            " begun again"
        ),
        "worker time": _duration(status.worker_seconds),
        "configuration": status.fingerprint or "of the first worker",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{timedelta(seconds=round(seconds))}"
