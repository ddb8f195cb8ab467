"""A database that fails in the middle: its disk is full, it is restarted in a commit, it cannot
serialise.
"""

import random
import subprocess
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

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
    expected,
    items,
    working,
)
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
COUNT = 400
SMALL = ("max_wal_size=32MB", "min_wal_size=32MB", "shared_buffers=8MB", "fsync=off")


@contextmanager
def own_database(
    folder: Path, job: str, *more: str, changes: LiteralString = ""
) -> Generator[tuple[EmbeddedPostgres, Harness]]:
    with EmbeddedPostgres(folder / "db", settings=(*SMALL, *more)) as server:
        with connect(server.uri) as connection:
            schema.migrate(connection)
            connection.execute(changes)
        with (
            open_pool(server.uri) as pool,
            psycopg.connect(server.uri, autocommit=True) as connection,
        ):
            yield (
                server,
                Harness(
                    pool=pool,
                    connection=connection,
                    job=job,
                    events=folder / "e.jsonl",
                ),
            )


def database_troubles(harness: Harness) -> int:
    return sum(event["source"] == "database" for event in harness.event_lines("retrying"))


class Bulky(CountingPredictor):
    """Values large enough that a full disk is met soon."""

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        super().predict(bodies)
        return [{"text": random.Random(body).randbytes(30_000).hex()} for body in bodies]


def limit_files(folder: Path, server: EmbeddedPostgres, soft: str) -> None:
    """How large a file of the server's may grow. The server's first: what is forked meanwhile has
    it too.
    """
    family = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    for pid in (server.pid, *map(int, family.read_text().split())):
        limit = ("prlimit", f"--pid={pid}", f"--fsize={soft}:")
        done = subprocess.run([*as_server_user(folder), *limit], capture_output=True, text=True)
        assert done.returncode == 0 or not Path(f"/proc/{pid}").exists(), done.stderr


def test_a_disk_on_which_no_file_can_grow_is_waited_for(job: str, tmp_path: Path) -> None:
    with own_database(tmp_path, job) as (server, harness):
        wanted = items(job, COUNT)
        harness.enqueue(wanted)
        with working(harness, Bulky) as thread:
            limit_files(tmp_path, server, str(16 * 2**20))  # the size of a segment of the log
            until(lambda: database_troubles(harness), alive=thread.is_alive)
            limit_files(tmp_path, server, "unlimited")
        values = Bulky().predict([item.body for item in wanted])
        assert harness.rows() == {i.id: ("done", v) for i, v in zip(wanted, values, strict=True)}


# Serialisation failure, deadlock, out of connections, statement cancelled, disk full.
_REFUSE_FIRST = """
CREATE SEQUENCE refusals;
GRANT USAGE ON refusals TO holdfast_worker;
CREATE FUNCTION refuse_first() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE code text := (ARRAY['40001', '40P01', '53300', '57014', '53100'])[nextval('public.refusals')];
BEGIN
    IF code IS NOT NULL THEN RAISE EXCEPTION 'not now' USING ERRCODE = code; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refusing BEFORE UPDATE ON holdfast.result FOR EACH ROW
WHEN (NEW.status = 'done') EXECUTE FUNCTION refuse_first();
"""


def test_what_the_database_refuses_for_a_moment_is_tried_again(job: str, tmp_path: Path) -> None:
    with own_database(tmp_path, job, changes=_REFUSE_FIRST) as (_, harness):
        harness.enqueue(wanted := items(job, 50))
        assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
        assert harness.rows() == expected(wanted)
        assert database_troubles(harness) == 5


def test_four_workers_whose_transactions_collide_lose_and_double_nothing(
    job: str, tmp_path: Path
) -> None:
    """Every transaction serialisable, a fifth of the items twice in the queue, some that fail: the
    database refuses many a transaction by itself.
    """
    with own_database(tmp_path, job, "default_transaction_isolation=serializable") as (_, harness):
        wanted = items(job, COUNT)
        bad = [Item(job=job, id=f"bad-{n}", body=b"\x00never") for n in range(5)]
        harness.enqueue([*wanted, *bad])
        harness.queue.publish(wanted[::5])
        workers = [harness.worker(CountingPredictor()) for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            assert [*threads.map(Worker.run, workers)] == [EXIT_COMPLETE] * 4
        found = harness.rows()
        assert {found.pop(item.id)[0] for item in bad} == {"dead"}
        assert found == expected(wanted)
        assert harness.one("SELECT sum(done) FROM holdfast.worker") == COUNT, (
            "counted where they are written"
        )
        failed = []
        for e in harness.event_lines("item_failed"):
            if e["error_class"] == "ValueError":
                failed.append(e["failures"])
        assert failed.count(3) == len(bad)
        assert database_troubles(harness) > 0
