"""Tests of the status of a job and its workers."""

from dataclasses import replace

import pytest
from psycopg import Connection

from holdfast.inference.results.status import format_table, load_status
from workloads.library.tests.inference.harness import CountingPredictor, Harness, items

pytestmark = pytest.mark.process


def test_worker_time_counts_until_now_or_the_last_heartbeat(
    harness: Harness, connection: Connection, job: str
) -> None:
    harness.enqueue(items(job, 8))
    harness.worker(CountingPredictor()).run()
    cases = {
        "running": ("2 s", None, 100, (1, 0, 0)),
        "killed": ("90 s", None, 10, (0, 1, 0)),
        "left": ("50 s", "preempted", 50, (0, 0, 1)),
    }
    for name, (heartbeat_age, outcome, seconds, counts) in cases.items():
        with connection.transaction():
            connection.execute(
                "UPDATE holdfast.worker SET started_at = now() - interval '100 s', seen_at = now()"
                " - %s::interval, ended = %s, load_seconds = 60 WHERE job = %s",
                (heartbeat_age, outcome, job),
            )
        status = load_status(connection, job)
        # The time of loading the model is paid, too.
        assert status.worker_seconds == pytest.approx(seconds + 60, abs=20), name
        assert (status.workers, status.killed, status.preempted) == counts, name
        table = format_table(replace(status, worker_seconds=3_900.0, eta_seconds=None))
        for text in (
            "8 of 8 (100.0%)",
            f"{counts[0]} now",
            f"{counts[2]} with notice",
            "1:05:00",
            "unknown",
        ):
            assert text in table
