"""Tests of faults of the database: full disks, refused commits, serialization failures."""

import os
import random
import socket
import socketserver
import subprocess
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.inference.items import Item
from holdfast.inference.results import schema
from holdfast.inference.results.connect import connect, open_pool
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.inference.results.postgres_access import as_server_user
from holdfast.inference.values import Value
from holdfast.inference.worker.batch_worker import Worker
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from workloads.library.tests.inference.harness import (
    CountingPredictor,
    Harness,
    expect_rows,
    items,
    run_in_thread,
)
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
COUNT = 400
SMALL = ("max_wal_size=32MB", "min_wal_size=32MB", "shared_buffers=8MB", "fsync=off")


@contextmanager
def start_database(
    folder: Path,
    job: str,
    *settings: str,
    changes: LiteralString = "",
) -> Generator[tuple[EmbeddedPostgres, Harness]]:
    with EmbeddedPostgres(folder / "db", settings=(*SMALL, *settings)) as server:
        with connect(server.uri) as connection:
            schema.migrate(connection)
            connection.execute(changes)
        with (
            open_pool(server.uri) as pool,
            psycopg.connect(server.uri, autocommit=True) as connection,
        ):
            harness = Harness(
                pool=pool,
                connection=connection,
                job=job,
                events=folder / "e.jsonl",
            )
            yield server, harness


def count_retries(harness: Harness) -> int:
    return sum(event["source"] == "database" for event in harness.event_lines("retrying"))


class LargeValuePredictor(CountingPredictor):
    """Returns values so large that the disk is soon full."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        super().predict(bodies)
        values: list[Value] = []
        for body in bodies:
            text = random.Random(body).randbytes(30_000).hex()
            values.append({"text": text})
        return values


def limit_files(folder: Path, server: EmbeddedPostgres, soft: str) -> None:
    """Limits the size of files of the server and its children.

    The server comes first, as children that it forks meanwhile inherit its limit.
    """
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    for pid in (str(server.pid), *children.read_text().split()):
        command = [*as_server_user(folder), "prlimit", f"--pid={pid}", f"--fsize={soft}:"]
        prlimit = subprocess.run(command, capture_output=True, text=True)
        has_ended = not Path(f"/proc/{pid}").exists()
        assert prlimit.returncode == 0 or has_ended, prlimit.stderr


def test_a_worker_waits_for_a_full_disk(job: str, tmp_path: Path) -> None:
    with start_database(tmp_path, job) as (server, harness):
        documents = items(job, COUNT)
        harness.enqueue(documents)
        with run_in_thread(harness, LargeValuePredictor) as thread:
            limit_files(
                tmp_path,
                server,
                str(16 * 2**20),
            )  # the size of a segment of the log
            until(lambda: count_retries(harness), alive=thread.is_alive)
            limit_files(tmp_path, server, "unlimited")
        values = LargeValuePredictor().predict([item.body for item in documents])
        rows = harness.rows()
        for item, value in zip(documents, values, strict=True):
            assert rows[item.id] == ("done", value)


# The codes: serialization failure, deadlock, out of connections, statement cancelled, disk full.
_REJECT_FIRST = """
CREATE SEQUENCE refusals;
GRANT USAGE ON refusals TO holdfast_worker;
CREATE FUNCTION refuse_first() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    codes text[] := ARRAY['40001', '40P01', '53300', '57014', '53100'];
    code text := codes[nextval('public.refusals')];
BEGIN
    IF code IS NOT NULL THEN RAISE EXCEPTION 'not now' USING ERRCODE = code; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refusing BEFORE UPDATE ON holdfast.result FOR EACH ROW
WHEN (NEW.status = 'done') EXECUTE FUNCTION refuse_first();
"""


def test_transient_refusals_are_retried(job: str, tmp_path: Path) -> None:
    with start_database(tmp_path, job, changes=_REJECT_FIRST) as (_, harness):
        documents = items(job, 50)
        harness.enqueue(documents)
        assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
        assert harness.rows() == expect_rows(documents)
        assert count_retries(harness) == 5


def test_four_workers_with_colliding_transactions_lose_and_repeat_nothing(
    job: str, tmp_path: Path
) -> None:
    """Transactions are serialisable, so the database itself refuses many of them.

    A fifth of the items is twice in the queue, and some items fail.
    """
    settings = "default_transaction_isolation=serializable"
    with start_database(tmp_path, job, settings) as (_, harness):
        documents = items(job, COUNT)
        bad_items = []
        for n in range(5):
            bad_items.append(Item(job=job, id=f"bad-{n}", body=b"\x00never"))
        harness.enqueue([*documents, *bad_items])
        harness.queue.publish(documents[::5])
        workers = [harness.worker(CountingPredictor()) for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            codes = list(threads.map(Worker.run, workers))
        assert codes == [EXIT_COMPLETE] * 4
        rows = harness.rows()
        for item in bad_items:
            assert rows.pop(item.id)[0] == "dead"
        assert rows == expect_rows(documents)
        done = harness.query_value("SELECT sum(done) FROM holdfast.worker")
        assert done == COUNT, "counts are written with their rows"
        failures: list[int] = []
        for line in harness.event_lines("item_failed"):
            if line["error_class"] == "ValueError":
                failures.append(line["failures"])
        assert failures.count(3) == len(bad_items)
        assert count_retries(harness) > 0


@contextmanager
def relay_tcp(uri: str) -> Generator[str]:
    """Serves the unix socket of a database on a TCP port; yields a URI of it."""
    options = conninfo_to_dict(uri)
    path = f"{options['host']}/.s.PGSQL.{options['port']}"

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as database:
                database.connect(path)
                back = threading.Thread(target=self.copy, args=(database, self.request))
                back.start()
                self.copy(self.request, database)
                back.join()

        @staticmethod
        def copy(source: socket.socket, target: socket.socket) -> None:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as relay:
        threading.Thread(target=relay.serve_forever, args=(0.05,)).start()
        try:
            yield f"postgresql://{options['user']}@127.0.0.1:{relay.server_address[1]}/postgres"
        finally:
            relay.shutdown()


def test_a_host_that_vanishes_is_noticed_within_a_minute(server: EmbeddedPostgres) -> None:
    """A kernel waits two hours by default for the answer of a machine that was lost."""
    with (
        relay_tcp(server.uri) as uri,
        connect(uri) as command,
        open_pool(uri, size=1) as pool,
        pool.connection() as worker,
    ):
        for connection in (command, worker):
            with socket.socket(fileno=os.dup(connection.fileno())) as link:
                names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
                idle, interval, count, unacked_ms = (
                    link.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names
                )
            assert idle + interval * count <= 60
            assert 0 < unacked_ms <= 60_000
