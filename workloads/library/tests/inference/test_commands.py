"""Tests of the batch commands: the worker as a process, other verbs in this process."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg
import pytest

from holdfast.commands import app
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.support.errors import run_cli
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_BUG, EXIT_FINDINGS
from workloads.library.tests.inference.harness import load_json_lines

pytestmark = pytest.mark.process
FAULTY = "workloads.library.tests.inference.server.playing_predictors:faulty"


class Completed(NamedTuple):
    code: int
    stdout: str
    stderr: str


def run_command(*arguments: object, uri: str = "", code: int = 0) -> Completed:
    words = [str(argument) for argument in arguments]
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": uri}
    if words[0] == "run":
        command = [
            sys.executable,
            "-m",
            "holdfast",
            "batch",
            *words,
        ]
        process = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        completed = Completed(process.returncode, process.stdout, process.stderr)
    else:
        completed = run_in_this_process(words, environment)
    assert completed.code == code, (arguments, completed)
    return completed


def run_in_this_process(arguments: list[str], environment: dict[str, str]) -> Completed:
    out = io.StringIO()
    err = io.StringIO()
    with (
        patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as exit_info,
    ):
        run_cli(lambda: app(["batch", *arguments]))
    return Completed(
        int(exit_info.value.code or 0),
        out.getvalue(),
        err.getvalue(),
    )


def enqueue(
    uri: str,
    job: str,
    folder: Path,
    rows: Iterable[object],
    *options: str,
    code: int = 0,
) -> Completed:
    """Enqueues rows from a file; their `text` is the content of items."""
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_command(
        "enqueue",
        job,
        "--source",
        source,
        "--body-column",
        "text",
        *options,
        uri=uri,
        code=code,
    )


def query_status(uri: str, job: str) -> dict[str, Any]:
    return json.loads(run_command("status", job, "--json", uri=uri).stdout)


def query_scaling(connection: psycopg.Connection, job: str) -> tuple[int, float, int]:
    """Queries the figures of the exporter, with its role, in a transaction that is rolled back."""
    connection.execute("SET ROLE holdfast_exporter")
    query = (
        "SELECT backlog_items, oldest_seconds, replicas_wanted FROM holdfast.job_scaling WHERE job"
        " = %s"
    )
    (row,) = connection.execute(query, (job,))
    connection.rollback()
    return row


def test_a_lane_without_credentials_says_how_to_get_them(
    server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "PUBSUB_EMULATOR_HOST", "CLOUDSDK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    lane = (
        "--topic",
        "projects/acme/topics/work",
        "--subscription",
        "projects/acme/subscriptions/w",
    )
    queued = enqueue(server.uri, "lane", tmp_path, [{"id": "1", "text": "a"}], *lane, code=3)
    assert "no credentials for Pub/Sub" in queued.stderr
    assert "gcloud auth application-default login" in queued.stderr


def test_a_folder_is_enqueued_scored_shown_and_exported(
    server: EmbeddedPostgres,
    job: str,
    documents: Path,
    tmp_path: Path,
) -> None:
    deadline = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    words = ("enqueue", job, "--source", documents, "--deadline", deadline, "--json")
    for new_count in (100, 0):
        enqueued = json.loads(run_command(*words, uri=server.uri).stdout)
        assert enqueued["new"] == new_count
    with psycopg.connect(server.uri) as connection:
        backlog, oldest_s, replicas = query_scaling(connection, job)
        assert backlog == 100
        assert replicas == 1, "the speed of a worker is unknown yet"
        assert oldest_s > 0
        # With a worker that does an item in ten minutes, 100 items in an hour need 17 of them.
        connection.execute("UPDATE holdfast.job SET fingerprint = 'f' WHERE job = %s", (job,))
        connection.execute(
            "INSERT INTO holdfast.worker (worker, job, fingerprint, done, started_at, seen_at)"
            " VALUES (%s, %s, 'f', 1, now() - interval '10 minutes', now())",
            (f"{job}-w", job),
        )
        backlog, _, replicas = query_scaling(connection, job)
        assert backlog == 99
        assert replicas == 17
        events = tmp_path / "e.jsonl"
        run_command(
            "run",
            job,
            "--predictor",
            "entropy",
            "--events-file",
            events,
            uri=server.uri,
        )
        assert query_scaling(connection, job) == (0, 0.0, 0)
    status = query_status(server.uri, job)
    assert status["total"] == status["done"] == 100
    assert status["waiting"] == status["replicas_wanted"] == 0
    assert "100 of 100 (100.0%)" in run_command("status", job, uri=server.uri).stdout
    export = tmp_path / "o.jsonl"
    run_command("export", job, "--out", export, uri=server.uri)
    names = [row["item"] for row in load_json_lines(export)]
    assert names == sorted(path.name for path in documents.iterdir())


def test_dead_items_are_listed_and_requeued(
    server: EmbeddedPostgres,
    job: str,
    tmp_path: Path,
) -> None:
    rows = [
        {"id": "a", "text": "exit"},
        {"id": "b", "text": "good"},
        {"id": "c", "text": "raise canary"},
    ]
    enqueue(server.uri, job, tmp_path, rows)
    events = tmp_path / "e"
    run = ("run", job, "--predictor", FAULTY, "--set", "max_failures=1", "--events-file", events)
    worker = run_command(*run, uri=server.uri)
    failures = ("failures", job)
    listing = run_command(*failures, "--json", uri=server.uri, code=EXIT_FINDINGS).stdout
    letters = {}
    for letter in json.loads(listing)["failures"]:
        letters[letter["item"]] = letter
    assert letters.keys() == {"a", "c"}
    assert letters["a"]["reason"] == "ProcessDied"
    assert letters["c"]["reason"] == "ValueError"
    assert letters["c"]["message"].startswith("asked to by")
    assert {letter["failures"] for letter in letters.values()} == {1}
    table = run_command(*failures, uri=server.uri, code=EXIT_FINDINGS).stdout
    assert "ValueError: asked to by" in table
    assert "canary" not in worker.stdout + worker.stderr + listing + events.read_text()

    redrive = (*failures, "--redrive")
    refusal = run_command(
        *redrive,
        "--item",
        "b",
        uri=server.uri,
        code=EXIT_BAD_INPUT,
    )
    assert "the item is done" in refusal.stderr
    run_command(*redrive, uri=server.uri)
    assert query_status(server.uri, job)["failed"] == 0
    run_command(*run, uri=server.uri)
    status = query_status(server.uri, job)
    assert status["done"] == 1, "they fail again"
    assert status["failed"] == 2, "they fail again"


def test_bad_input_exits_2_with_a_fix_and_a_loader_with_a_bug_exits_70(
    server: EmbeddedPostgres,
    job: str,
    tmp_path: Path,
    documents: Path,
) -> None:
    duplicates = tmp_path / "duplicates.jsonl"
    empty = tmp_path / "empty"
    large = tmp_path / "large"
    duplicates.write_text('{"id": 1, "x": 1}\n{"id": 1, "x": 2}\n')
    empty.mkdir()
    large.mkdir()
    (large / "large.txt").write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    run_command("enqueue", job, "--source", documents, uri=server.uri)
    cases: list[tuple[str, tuple[object, ...], str]] = [
        ("unknown", ("status", "no-such-job"), server.uri),
        ("no item", ("enqueue", f"{job}-e", "--source", empty), server.uri),
        (
            "same id and different content",
            ("enqueue", f"{job}-t", "--source", duplicates),
            server.uri,
        ),
        ("larger than a message", ("enqueue", f"{job}-l", "--source", large), server.uri),
        (
            "cannot be read",
            ("enqueue", job, "--source", documents, "--deadline", "tomorrow"),
            server.uri,
        ),
        ("job name", ("status", "a job; DROP TABLE"), server.uri),
        ("needs a model", ("run", job), server.uri),
        (
            "no config.json",
            ("run", job, "--predictor", "holdfast.inference.examples.vllm_predictor:build"),
            server.uri,
        ),
        (
            "the path cannot be used",
            ("run", job, "--events-file", duplicates / "e"),
            server.uri,
        ),
        (
            "must be given together",
            ("enqueue", job, "--source", documents, "--topic", "t"),
            server.uri,
        ),
        ("rejects this user", ("status", job), server.uri.replace("postgres@", "unknown-user@")),
        ("no database is named", ("status", job), ""),
        ("URI cannot be read", ("status", job), "postgresql://user:canary@[/db"),
        (
            "older than the code",
            ("failures", job, "--redrive"),
            server.uri.replace("/postgres?", "/template1?"),
        ),
    ]
    for message, words, uri in cases:
        completed = run_command(*words, uri=uri, code=EXIT_BAD_INPUT)
        assert message in completed.stderr, (message, completed.stderr)
        assert "fix:" in completed.stderr
        assert "Traceback" not in completed.stderr
        assert "canary" not in completed.stderr
    run = ("run", job, "--predictor", FAULTY.replace(":faulty", ":bug"))
    assert "RuntimeError" in run_command(*run, uri=server.uri, code=EXIT_BUG).stderr
