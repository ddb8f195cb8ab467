"""Tests the metrics of batch jobs, read from a real results database."""

from pathlib import Path
from typing import LiteralString

import pytest

from holdfast.controllers import loop
from holdfast.controllers.cluster import Cluster
from holdfast.exporter.backlog import STALE_S, Backlog
from holdfast.exporter.main import Exporter
from holdfast.inference.results import schema
from holdfast.inference.results.connect import connect
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from tests.cluster.sim.waiting import until

pytestmark = pytest.mark.process


def execute(database: EmbeddedPostgres, statement: LiteralString) -> None:
    with connect(database.uri) as connection:
        connection.execute(statement)
        connection.commit()


def test_the_backlog_is_shown_until_the_database_fails(tmp_path: Path) -> None:
    now = [1000.0]
    with EmbeddedPostgres(tmp_path, settings=("fsync=off",)) as database:
        with connect(database.uri) as connection:
            schema.migrate(connection)
        execute(
            database,
            "INSERT INTO holdfast.job (job, fingerprint, total, created_at) VALUES ('nightly', 'f',"
            " 5, now() - interval '2 days')",
        )
        execute(
            database,
            "INSERT INTO holdfast.result (job, item, fingerprint, status, fence, worker) VALUES"
            " ('nightly', 'a', 'f', 'dead', 1, 'w')",
        )
        backlog = Backlog(database.uri, every_s=0.05, clock=lambda: now[0])
        exporter = Exporter(
            cluster=Cluster(),
            backlog=backlog,
            clock=lambda: now[0],
        )

        def read_metrics() -> dict[str, float]:
            values: dict[str, float] = {}
            for sample in exporter.gather():
                if sample.labels:
                    values[sample.metric] = sample.value
            return values

        with loop.running([backlog]):
            until("the backlog is shown", lambda: "batch_backlog_items" in read_metrics() or None)
            metrics = read_metrics()
            assert (metrics["batch_backlog_items"], metrics["batch_replicas_wanted"]) == (4, 1)
            # what HoldfastBacklogPastDeadline asks
            assert 0 <= metrics["batch_oldest_seconds"] - 2 * 86_400 < 600
            execute(database, "ALTER VIEW holdfast.job_scaling RENAME TO gone")
            execute(
                database,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <>"
                " pg_backend_pid() AND query LIKE '%job_scaling'",
            )

            def is_stale() -> bool:
                # Each time later than before: a last look may have ended after the one before.
                now[0] += STALE_S + 1
                return "batch_backlog_items" not in read_metrics()

            until("a silent database does not look empty", is_stale)
            execute(database, "ALTER VIEW holdfast.gone RENAME TO job_scaling")
            until(
                "the backlog is shown again",
                lambda: "batch_backlog_items" in read_metrics() or None,
            )
        backlog.join(30)
        assert not backlog.is_alive()
