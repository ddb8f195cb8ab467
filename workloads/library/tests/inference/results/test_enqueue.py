"""Tests of the statements that enqueue items, whatever PostgreSQL believes about its tables."""

from pathlib import Path

import psycopg
import pytest

from holdfast.inference.enqueue import CHUNK_ITEMS, enqueue
from holdfast.inference.queue.postgres import PostgresQueue
from holdfast.inference.results import schema
from holdfast.inference.results.connect import connect, open_pool
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from workloads.library.tests.inference.harness import items

pytestmark = pytest.mark.process  # PostgreSQL

CHUNKS = 8


def test_enqueue_reads_each_item_once_after_an_early_analyze(tmp_path: Path) -> None:
    """Autovacuum analyzes tables that a transaction is filling, and counts no rows in them."""
    count = CHUNKS * CHUNK_ITEMS
    settings = ("fsync=off", "autovacuum=off")
    with (
        EmbeddedPostgres(tmp_path, settings=settings) as server,
        connect(server.uri) as connection,
        open_pool(server.uri, size=1) as pool,
        psycopg.connect(server.uri, autocommit=True) as vacuum,
    ):
        schema.migrate(connection)

        def analyze(_: int) -> None:
            vacuum.execute("ANALYZE holdfast.item, holdfast.outbox")

        queue = PostgresQueue(pool, "long", lease_s=60.0)
        counts = enqueue(connection, queue, "long", items("long", count), analyze)
        connection.execute("SELECT pg_stat_force_next_flush()")
        connection.commit()
        rows = vacuum.execute(
            "SELECT relname, seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables"
            " WHERE relname IN ('item', 'outbox')"
        ).fetchall()
    reads = dict(rows)
    assert counts == {"seen": count, "new": count, "published": count}
    # An item is read for its digest, for the outbox's reference to it, and for its body.
    assert reads["item"] <= 4 * count
    assert reads["outbox"] <= 4 * count
