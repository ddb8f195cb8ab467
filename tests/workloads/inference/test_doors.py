"""The doors as a user and Kubernetes meet them: real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from pyarrow import parquet

from infra.contract.errors import EXIT_BAD_INPUT, EXIT_FINDINGS
from infra.contract.lifecycle import EXIT_COMPLETE, EXIT_PREEMPTED
from workloads.inference.database import EmbeddedPostgres

pytestmark = pytest.mark.process
BATCH = (sys.executable, "-m", "workloads", "batch")


def door(*words: object, uri: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": uri}
    done = subprocess.run([*BATCH, *map(str, words)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done


def until(condition: Callable[[], object], *, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def workers(server: EmbeddedPostgres) -> Generator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: object) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "HOLDFAST_DATABASE_URL": server.uri}
        started.append(subprocess.Popen([*BATCH, "run", *map(str, words)], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def leased(uri: str, job: str) -> bool:
    with psycopg.connect(uri) as connection:
        query = "SELECT EXISTS (SELECT FROM holdfast.queue WHERE job = %s AND deliveries > 0)"
        row = connection.execute(query, (job,)).fetchone()
    return bool(row and row[0])


def told(path: Path, event: str) -> int:
    return path.read_text().count(f'"event": "{event}"') if path.exists() else 0


def test_a_folder_is_queued_scored_shown_and_exported(
    server: EmbeddedPostgres, job: str, documents: Path, tmp_path: Path
) -> None:
    first = door("enqueue", job, "--source", documents, "--json", uri=server.uri)
    again = door("enqueue", job, "--source", documents, "--json", uri=server.uri)
    assert [json.loads(done.stdout)["new"] for done in (first, again)] == [100, 0]
    door("run", job, "--predictor", "entropy", "--events", tmp_path / "e.jsonl", uri=server.uri)
    status = json.loads(door("status", job, "--json", "--price", "0.5", uri=server.uri).stdout)
    assert (status["total"], status["done"], status["waiting"], status["replicas_wanted"]) == (100, 100, 0, 0)
    assert status["cost_per_1000"] > 0
    lines, table = tmp_path / "o.jsonl", tmp_path / "o.parquet"
    door("export", job, "--out", lines, uri=server.uri)
    door("export", job, "--out", table, uri=server.uri)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["item"] for row in rows] == sorted(path.name for path in documents.iterdir())
    assert parquet.read_table(table).column("item").to_pylist() == [row["item"] for row in rows]
    assert json.loads(parquet.read_table(table).column("value")[7].as_py())["score"] == rows[7]["score"]


def test_sigterm_drains_and_says_preempted_and_another_worker_finishes(
    server: EmbeddedPostgres, job: str, tmp_path: Path, workers: Callable[..., subprocess.Popen[bytes]]
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": n, "text": "x" * (n % 50)}) + "\n" for n in range(4000)))
    door("enqueue", job, "--source", source, "--body-column", "text", uri=server.uri)
    events = tmp_path / "e.jsonl"
    worker = workers(job, "--predictor", "entropy", "--micro-batch", 4, "--events", events)
    until(lambda: told(events, "stored") > 3)
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == EXIT_PREEMPTED
    assert time.monotonic() - began < 15
    status = json.loads(door("status", job, "--json", uri=server.uri).stdout)
    assert 0 < status["done"] < 4000
    assert status["held"] == 0
    assert status["preempted"] == 1
    assert workers(job, "--predictor", "entropy", "--events", events).wait(120) == EXIT_COMPLETE
    status = json.loads(door("status", job, "--json", uri=server.uri).stdout)
    assert (status["done"], status["retried"] > 0) == (4000, True)


def test_a_second_signal_leaves_at_once(
    server: EmbeddedPostgres, job: str, documents: Path, tmp_path: Path, workers: Callable[..., subprocess.Popen[bytes]]
) -> None:
    door("enqueue", job, "--source", documents, uri=server.uri)
    events = tmp_path / "e.jsonl"
    with psycopg.connect(server.uri) as blocker:
        # No claim can be written, so a drain would have to wait for the lock.
        blocker.execute("LOCK TABLE holdfast.result IN SHARE MODE")
        worker = workers(job, "--predictor", "entropy", "--events", events)
        until(lambda: leased(server.uri, job))
        worker.send_signal(signal.SIGTERM)
        time.sleep(0.2)  # two signals at one moment are one
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == EXIT_PREEMPTED


def test_what_hangs_is_abandoned_when_the_window_ends(
    server: EmbeddedPostgres, job: str, documents: Path, tmp_path: Path, workers: Callable[..., subprocess.Popen[bytes]]
) -> None:
    door("enqueue", job, "--source", documents, uri=server.uri)
    events = tmp_path / "e.jsonl"
    with psycopg.connect(server.uri) as blocker:
        blocker.execute("LOCK TABLE holdfast.result IN SHARE MODE")
        worker = workers(job, "--predictor", "entropy", "--window", 5, "--events", events)
        until(lambda: leased(server.uri, job))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == EXIT_PREEMPTED
        waiting = blocker.execute(
            "SELECT count(*) FROM holdfast.queue WHERE job = %s AND visible_at <= clock_timestamp()", (job,)
        )
        assert waiting.fetchone() == (100,)


def test_the_worker_outlives_a_restart_of_the_database(
    tmp_path: Path, job: str, workers: Callable[..., subprocess.Popen[bytes]]
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(3000)))
    events = tmp_path / "e.jsonl"
    with EmbeddedPostgres(tmp_path / "own") as own:
        door("migrate", uri=own.uri)
        door("enqueue", job, "--source", source, uri=own.uri)
        worker = workers(job, "--predictor", "entropy", "--micro-batch", 8, "--events", events, "--database", own.uri)
        for crash in (signal.SIGQUIT, signal.SIGINT):
            seen = told(events, "stored")
            until(lambda seen=seen: told(events, "stored") > seen + 3)
            own.stop(crash)
            own.start()
        assert worker.wait(120) == EXIT_COMPLETE
        with psycopg.connect(own.uri) as connection:
            row = connection.execute("SELECT count(*), count(DISTINCT item) FROM holdfast.result WHERE status = 'done'")
            assert row.fetchone() == (3000, 3000)


def test_dead_items_are_listed_and_brought_back(server: EmbeddedPostgres, job: str, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"id": "a"}\n{"id": "b"}\n')
    door("enqueue", job, "--source", source, uri=server.uri)
    door("run", job, "--predictor", "entropy", "--events", tmp_path / "e", uri=server.uri)
    with psycopg.connect(server.uri) as connection:
        connection.execute(
            "UPDATE holdfast.result SET status = 'dead', failures = 3 WHERE job = %s AND item = 'a'", (job,)
        )
        connection.execute(
            "INSERT INTO holdfast.dead_letter (job, item, fingerprint, digest, reason, failures)"
            " SELECT job, item, fingerprint, 'd', 'ValueError', 3 FROM holdfast.result WHERE job = %s AND item = 'a'",
            (job,),
        )
    found = json.loads(door("failures", job, "--json", uri=server.uri, code=EXIT_FINDINGS).stdout)["failures"]
    assert [(f["item"], f["reason"], f["failures"]) for f in found] == [("a", "ValueError", 3)]
    assert "not dead" in door("redrive", job, "--item", "b", uri=server.uri, code=EXIT_BAD_INPUT).stderr
    door("redrive", job, uri=server.uri)
    door("run", job, "--predictor", "entropy", "--events", tmp_path / "e", uri=server.uri)
    door("failures", job, uri=server.uri)
    assert json.loads(door("status", job, "--json", uri=server.uri).stdout)["done"] == 2


def test_bad_input_ends_with_exit_2_and_names_the_fix(
    server: EmbeddedPostgres, job: str, tmp_path: Path, documents: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"id": 1, "x": 1}\n{"id": 1, "x": 2}\n')
    large = tmp_path / "large"
    large.mkdir()
    (large / "large.txt").write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    door("enqueue", job, "--source", documents, uri=server.uri)
    cases: list[tuple[str, tuple[object, ...], str]] = [
        ("unknown", ("run", "no-such-job"), server.uri),
        ("no item", ("enqueue", f"{job}-e", "--source", empty), server.uri),
        ("lacks a column", ("enqueue", f"{job}-c", "--source", twice, "--id-column", "key"), server.uri),
        ("two different contents", ("enqueue", f"{job}-t", "--source", twice), server.uri),
        ("larger than a message", ("enqueue", f"{job}-l", "--source", large), server.uri),
        ("cannot be read", ("enqueue", job, "--source", tmp_path / "nothing"), server.uri),
        ("job name", ("status", "a job; DROP TABLE"), server.uri),
        ("needs a model", ("run", job), server.uri),
        ("which model", ("run", job, "--checkpoints", empty), server.uri),
        ("half of a Pub/Sub queue", ("run", job, "--topic", "projects/p/topics/t"), server.uri),
        ("refuses this user", ("status", job), server.uri.replace("postgres@", "nobody-knows@")),
        ("no database is named", ("status", job), ""),
        ("older than the code", ("run", job), server.uri.replace("/postgres?", "/template1?")),
    ]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda case: door(*case[1], uri=case[2], code=EXIT_BAD_INPUT), cases))
    for (expected, *_), done in zip(cases, answers, strict=True):
        assert expected in done.stderr, (expected, done.stderr)
        assert "fix:" in done.stderr
        assert "Traceback" not in done.stderr


def test_another_configuration_is_refused_until_recompute_is_asked_for(
    server: EmbeddedPostgres, job: str, documents: Path, tmp_path: Path
) -> None:
    door("enqueue", job, "--source", documents, uri=server.uri)
    with psycopg.connect(server.uri) as connection:
        connection.execute(
            "UPDATE holdfast.job SET fingerprint = 'other', configuration = '{\"version\": 0}' WHERE job = %s", (job,)
        )
    run = ("run", job, "--predictor", "entropy", "--events", tmp_path / "e")
    assert "version=1 (job: 0)" in door(*run, uri=server.uri, code=EXIT_BAD_INPUT).stderr
    door(*run, "--recompute", uri=server.uri)
    assert json.loads(door("status", job, "--json", uri=server.uri).stdout)["done"] == 100
