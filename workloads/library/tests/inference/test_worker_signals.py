"""Tests of the worker as a real process with real signals, in every phase."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.ledger.events import read_folder
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED
from workloads.library.tests.inference.harness import (
    CountingPredictor,
    Harness,
    expect_rows,
    items,
    load_json_lines,
)
from workloads.library.tests.inference.test_commands import enqueue, query_status, run_command
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
FAULTY = "workloads.library.tests.inference.server.playing_predictors"
Starter = Callable[..., subprocess.Popen[bytes]]


# The first two commits of these items last until the test ends the server. A sequence counts them,
# as it is not rolled back.
_SLOW_COMMIT = """
CREATE SEQUENCE commits;
GRANT USAGE ON commits TO holdfast_worker;
CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('public.commits') <= 2 THEN PERFORM pg_sleep(10); END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER lingering AFTER UPDATE ON holdfast.result DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.status = 'done' AND NEW.item LIKE '%77') EXECUTE FUNCTION linger();
"""
_COMMITTING = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query ILIKE 'commit%'"


def count_events(path: Path, event: str) -> int:
    if not path.exists():
        return 0
    return path.read_text().count(f'"event": "{event}"')


def test_after_sigterm_another_worker_finishes(
    server: EmbeddedPostgres,
    job: str,
    tmp_path: Path,
    workers: Starter,
) -> None:
    rows = []
    for n in range(1000):
        rows.append({"id": n, "text": "x" * (n % 50)})
    enqueue(server.uri, job, tmp_path, rows)
    events = tmp_path / "e.jsonl"
    # It works for so long that the signal reaches it on a busy machine too.
    predictor = ("--predictor", f"{FAULTY}:gpu_like", "--model", 2)
    worker = workers(job, *predictor, "--set", "micro_batch=4", "--events-file", events)
    until(lambda: count_events(events, "stored") > 3)
    start = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == EXIT_PREEMPTED
    assert time.monotonic() - start < 15
    status = query_status(server.uri, job)
    assert 0 < status["done"] < 1000
    assert status["held"] == 0
    assert status["preempted"] == 1
    next_worker = workers(job, *predictor, "--events-file", events)
    assert next_worker.wait(120) == EXIT_COMPLETE
    starts = [event for event in read_folder(tmp_path).events if event.type == "start"]
    assert [event.fields["steps"] for event in starts] == [1000, 1000]
    assert [event.fields["items"] for event in starts] == [1000, 1000 - status["done"]]
    status = query_status(server.uri, job)
    assert status["done"] == 1000
    assert status["retried"] > 0


def test_a_hanging_database_is_abandoned_when_the_window_ends(
    server: EmbeddedPostgres,
    job: str,
    documents: Path,
    tmp_path: Path,
    workers: Starter,
) -> None:
    run_command("enqueue", job, "--source", documents, uri=server.uri)
    with psycopg.connect(server.uri) as blocker:
        # No claim can be written, so a drain would wait for the lock.
        blocker.execute("LOCK TABLE holdfast.result IN SHARE MODE")
        worker = workers(
            job, "--predictor", "entropy", "--window", 5, "--events-file", tmp_path / "e.jsonl"
        )
        leased = "SELECT FROM holdfast.queue WHERE job = %s AND deliveries > 0"
        until(lambda: blocker.execute(leased, (job,)).rowcount)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == EXIT_PREEMPTED
        query = (
            "SELECT count(*) FROM holdfast.queue WHERE job = %s AND visible_at <= clock_timestamp()"
        )
        assert blocker.execute(query, (job,)).fetchone() == (100,), "released"


@pytest.mark.parametrize("deaths", [0, 1])
def test_a_notice_during_a_load_exits_at_once(
    server: EmbeddedPostgres,
    job: str,
    tmp_path: Path,
    workers: Starter,
    deaths: int,
) -> None:
    """The first load, or the one after a death, never ends, and the window is long."""
    enqueue(
        server.uri,
        job,
        tmp_path,
        [{"id": "a", "text": "exit"}],
    )
    model = tmp_path / "model"
    loads = tmp_path / "model.loading"
    if deaths:
        model.touch()
    run = ("--predictor", f"{FAULTY}:slow", "--model", model, "--window", 200)
    worker = workers(
        job,
        *run,
        "--events-file",
        tmp_path / "e.jsonl",
    )
    until(lambda: loads.exists() and len(loads.read_text()) > deaths)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == EXIT_PREEMPTED
    assert query_status(server.uri, job)["failures"] == deaths, (
        "the earlier death counts, the stop does not"
    )


def test_database_restarts_lose_and_repeat_nothing(
    tmp_path: Path, job: str, workers: Starter
) -> None:
    events = tmp_path / "e.jsonl"
    rows = [{"id": n, "text": f"text {n}"} for n in range(800)]
    with EmbeddedPostgres(tmp_path / "own") as database:
        run_command("database", uri=database.uri)
        enqueue(database.uri, job, tmp_path, rows)
        loaded = tmp_path / "model.loaded"
        run = ("--predictor", f"{FAULTY}:slow", "--model", loaded, "--set", "micro_batch=8")
        worker = workers(
            job,
            *run,
            "--events-file",
            events,
            "--database",
            database.uri,
        )
        until(loaded.with_suffix(".loading").exists)
        database.stop(signal.SIGINT)  # a connection that it has while it loads is lost
        database.start()
        with psycopg.connect(database.uri) as connection:
            connection.execute(_SLOW_COMMIT)
        loaded.touch()
        # SIGINT first: after a crash the sequence may skip or repeat numbers.
        for signum in (signal.SIGINT, signal.SIGQUIT):
            with psycopg.connect(database.uri, autocommit=True) as connection:
                until(lambda connection=connection: connection.execute(_COMMITTING).rowcount)
            database.stop(signum)
            database.start()
        assert worker.wait(120) == EXIT_COMPLETE
        assert query_status(database.uri, job)["done"] == 800
    stored = 0
    sources: set[str] = set()
    for line in load_json_lines(events):
        if line["event"] == "stored":
            stored += line["items"]
        elif line["event"] == "retrying":
            sources.add(line["source"])
    assert stored == 800
    assert "database" in sources


def test_a_stopped_worker_cannot_write_items_that_another_claimed(
    harness: Harness, tmp_path: Path, workers: Starter
) -> None:
    documents = items(harness.job, 1000)
    harness.enqueue(documents)
    events = tmp_path / "zombie.jsonl"
    quick = ("--set", "lease_s=1", "--set", "micro_batch=4")
    zombie = workers(
        harness.job,
        "--predictor",
        "entropy",
        *quick,
        "--events-file",
        events,
    )
    until(lambda: count_events(events, "stored") > 3)
    zombie.send_signal(signal.SIGSTOP)
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    rows = harness.rows()
    zombie.send_signal(signal.SIGCONT)
    assert zombie.wait(60) == EXIT_COMPLETE
    assert harness.rows() == rows == expect_rows(documents)
