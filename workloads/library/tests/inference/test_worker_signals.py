"""The worker as Kubernetes meets it: a real process with real signals, in every phase."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED
from workloads.library.tests.inference.harness import CountingPredictor, Harness, expected, items
from workloads.library.tests.inference.test_commands import enqueue, run_command, status_of
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
FAULTY = "workloads.library.tests.inference.server.playing_predictors"
Starter = Callable[..., subprocess.Popen[bytes]]


_SLOW_COMMIT = """
CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER lingering AFTER UPDATE ON holdfast.result DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.status = 'done' AND NEW.item LIKE '%77') EXECUTE FUNCTION linger();
"""
_COMMITTING = "SELECT FROM pg_stat_activity WHERE state = 'active' AND query ILIKE 'commit%'"


def count_events(path: Path, event: str) -> int:
    return path.read_text().count(f'"event": "{event}"') if path.exists() else 0


def test_sigterm_drains_and_says_preempted_and_another_worker_finishes(
    server: EmbeddedPostgres,
    job: str,
    tmp_path: Path,
    workers: Starter,
) -> None:
    enqueue(server.uri, job, tmp_path, ({"id": n, "text": "x" * (n % 50)} for n in range(1000)))
    events = tmp_path / "e.jsonl"
    worker = workers(job, "--predictor", "entropy", "--set", "micro_batch=4", "--events", events)
    until(lambda: count_events(events, "stored") > 3)
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == EXIT_PREEMPTED
    assert time.monotonic() - began < 15
    status = status_of(server.uri, job)
    assert 0 < status["done"] < 1000
    assert (status["held"], status["preempted"]) == (0, 1)
    assert workers(job, "--predictor", "entropy", "--events", events).wait(120) == EXIT_COMPLETE
    status = status_of(server.uri, job)
    assert status["done"] == 1000 and status["retried"] > 0


def test_what_hangs_is_abandoned_when_the_window_ends(
    server: EmbeddedPostgres,
    job: str,
    documents: Path,
    tmp_path: Path,
    workers: Starter,
) -> None:
    run_command("enqueue", job, "--source", documents, uri=server.uri)
    with psycopg.connect(server.uri) as blocker:
        # No claim can be written, so a drain would have to wait for the lock.
        blocker.execute("LOCK TABLE holdfast.result IN SHARE MODE")
        worker = workers(
            job, "--predictor", "entropy", "--window", 5, "--events", tmp_path / "e.jsonl"
        )
        leased = "SELECT FROM holdfast.queue WHERE job = %s AND deliveries > 0"
        until(lambda: blocker.execute(leased, (job,)).rowcount)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == EXIT_PREEMPTED
        query = (
            "SELECT count(*) FROM holdfast.queue WHERE job = %s AND visible_at <= clock_timestamp()"
        )
        assert blocker.execute(query, (job,)).fetchone() == (100,), "given back"


@pytest.mark.parametrize("deaths", [0, 1])
def test_a_notice_while_the_model_loads_is_not_kept_waiting(
    server: EmbeddedPostgres,
    job: str,
    tmp_path: Path,
    workers: Starter,
    deaths: int,
) -> None:
    """The first load, or the one after a death, never ends here, and the window is long: a worker
    that waits is seen.
    """
    enqueue(server.uri, job, tmp_path, [{"id": "a", "text": "exit"}])
    model = tmp_path / "model"
    loads = tmp_path / "model.loading"
    if deaths:
        model.touch()
    run = ("--predictor", f"{FAULTY}:slow", "--model", model, "--window", 200)
    worker = workers(job, *run, "--events", tmp_path / "e.jsonl")
    until(lambda: loads.exists() and len(loads.read_text()) > deaths)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == EXIT_PREEMPTED
    assert status_of(server.uri, job)["failures"] == deaths, (
        "the death that came before counts, the stop does not"
    )


def test_restarts_of_the_database_while_a_worker_loads_and_while_it_commits_lose_and_double_nothing(
    tmp_path: Path, job: str, workers: Starter
) -> None:
    events = tmp_path / "e.jsonl"
    with EmbeddedPostgres(tmp_path / "own") as own:
        run_command("database", uri=own.uri)
        enqueue(own.uri, job, tmp_path, ({"id": n, "text": f"text {n}"} for n in range(800)))
        loaded = tmp_path / "model.loaded"
        run = ("--predictor", f"{FAULTY}:slow", "--model", loaded, "--set", "micro_batch=8")
        worker = workers(job, *run, "--events", events, "--database", own.uri)
        until(loaded.with_suffix(".loading").exists)
        own.stop(signal.SIGINT)  # whatever connection it has while it loads is dead
        own.start()
        with psycopg.connect(own.uri) as connection:
            connection.execute(_SLOW_COMMIT)
        loaded.touch()
        for crash in (signal.SIGQUIT, signal.SIGINT):
            with psycopg.connect(own.uri, autocommit=True) as connection:
                until(lambda connection=connection: connection.execute(_COMMITTING).rowcount)
            own.stop(crash)
            own.start()
        assert worker.wait(120) == EXIT_COMPLETE
        assert status_of(own.uri, job)["done"] == 800
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    assert sum(line["items"] for line in lines if line["event"] == "stored") == 800
    assert any(line.get("source") == "database" for line in lines if line["event"] == "retrying")


def test_a_worker_that_stood_still_cannot_write_what_another_has_claimed(
    harness: Harness, tmp_path: Path, workers: Starter
) -> None:
    harness.enqueue(wanted := items(harness.job, 1000))
    events = tmp_path / "zombie.jsonl"
    quick = ("--set", "lease_s=1", "--set", "micro_batch=4")
    zombie = workers(harness.job, "--predictor", "entropy", *quick, "--events", events)
    until(lambda: count_events(events, "stored") > 3)
    zombie.send_signal(signal.SIGSTOP)
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    before = harness.rows()
    zombie.send_signal(signal.SIGCONT)
    assert zombie.wait(60) == EXIT_COMPLETE
    assert harness.rows() == before == expected(wanted)
