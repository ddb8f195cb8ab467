"""The progress of a job, from the view holdfast.job_status, which dashboards use too."""

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
    """Dead items, for which every allowed try of the processing failed."""
    waiting: int
    retried: int
    """Items that were claimed more than once, for any reason."""
    failures: int
    workers: int
    """Workers with a heartbeat in the last 30 s that have not ended."""
    preempted: int
    killed: int
    """Workers that ended without notice."""
    rate: float
    """Items done a second over the last minute."""
    eta_seconds: float | None
    worker_seconds: float
    """The paid time of all workers, including the loading of their models."""
    oldest_seconds: float
    replicas_wanted: int

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)


def load_status(connection: Connection, job: str) -> Status:
    """Loads the status of a job. Raises InputError if the job is unknown."""
    jobs.require(connection, job)
    with connection.transaction(), connection.cursor(row_factory=class_row(Status)) as cursor:
        cursor.execute("SELECT * FROM holdfast.job_status WHERE job = %s", (job,))
        status = cursor.fetchone()
    assert status is not None, job
    return status


def format_table(status: Status) -> str:
    """Formats the status for people; `to_json` has every number."""
    done_share = status.done / max(1, status.total)
    rows = {
        "job": status.job,
        "done": f"{status.done:,} of {status.total:,} ({done_share:.1%})",
        "held": f"{status.held:,}",
        "waiting": f"{status.waiting:,}",
        "failed": f"{status.failed:,} for good, {status.failures:,} errors of processing",
        "rate": f"{status.rate:,.1f} items/s over the last minute",
        "time to go": _format_duration(status.eta_seconds),
        "workers": f"{status.workers} now, {status.replicas_wanted} wanted for the deadline",
        "preempted": (
            f"{status.preempted} with notice, {status.killed} without; {status.retried:,} items"
            " retried"
        ),
        "worker time": _format_duration(status.worker_seconds),
        "configuration": status.fingerprint or "set by the first worker",
    }
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {value}" for name, value in rows.items()]
    return "\n".join(lines)


def _format_duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return str(timedelta(seconds=round(seconds)))
