"""The commands as a user and Kubernetes meet them: the worker as a real process with real signals,
the other verbs through the same entry in this one.
"""

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

pytestmark = pytest.mark.process
FAULTY = "workloads.library.tests.inference.server.playing_predictors:faulty"


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


def run_command(*arguments: object, uri: str = "", code: int = 0) -> Done:
    words = [str(word) for word in arguments]
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
        done = Done(process.returncode, process.stdout, process.stderr)
    else:
        done = in_this_process(words, environment)
    assert done.code == code, (arguments, done)
    return done


def in_this_process(arguments: list[str], environment: dict[str, str]) -> Done:
    out = io.StringIO()
    err = io.StringIO()
    with (
        patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        run_cli(lambda: app(["batch", *arguments]))
    return Done(int(end.value.code or 0), out.getvalue(), err.getvalue())


def enqueue(
    uri: str,
    job: str,
    folder: Path,
    rows: Iterable[object],
    *options: str,
    code: int = 0,
) -> Done:
    """A file of rows, whose `text` is an item's content."""
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


def status_of(uri: str, job: str) -> dict[str, Any]:
    return json.loads(run_command("status", job, "--json", uri=uri).stdout)


def scaling(connection: psycopg.Connection, job: str) -> tuple[int, float, int]:
    """What the exporter shows; and nothing was changed."""
    connection.execute("SET ROLE holdfast_exporter")
    query = (
        "SELECT backlog_items, oldest_seconds, replicas_wanted FROM holdfast.job_scaling WHERE job"
        " = %s"
    )
    (row,) = connection.execute(query, (job,))
    connection.rollback()
    return row


def test_a_folder_is_queued_scored_shown_and_exported(
    server: EmbeddedPostgres,
    job: str,
    documents: Path,
    tmp_path: Path,
) -> None:
    in_an_hour = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    words = ("enqueue", job, "--source", documents, "--deadline", in_an_hour, "--json")
    assert [json.loads(run_command(*words, uri=server.uri).stdout)["new"] for _ in range(2)] == [
        100,
        0,
    ]
    with psycopg.connect(server.uri) as connection:
        backlog, oldest, replicas = scaling(connection, job)
        assert (backlog, replicas) == (
            100,
            1,
        ) and oldest > 0, "the speed of a worker is unknown yet"
        # A worker that does an item in ten minutes: 100 items in an hour need 17 of them.
        connection.execute("UPDATE holdfast.job SET fingerprint = 'f' WHERE job = %s", (job,))
        connection.execute(
            "INSERT INTO holdfast.worker (worker, job, fingerprint, done, started_at, seen_at)"
            " VALUES (%s, %s, 'f', 1, now() - interval '10 minutes', now())",
            (f"{job}-w", job),
        )
        assert scaling(connection, job)[0::2] == (99, 17)
        run_command(
            "run", job, "--predictor", "entropy", "--events", tmp_path / "e.jsonl", uri=server.uri
        )
        assert scaling(connection, job) == (0, 0.0, 0)
    status = status_of(server.uri, job)
    assert (status["total"], status["done"], status["waiting"], status["replicas_wanted"]) == (
        100,
        100,
        0,
        0,
    )
    assert "100 of 100 (100.0%)" in run_command("status", job, uri=server.uri).stdout
    lines = tmp_path / "o.jsonl"
    run_command("export", job, "--out", lines, uri=server.uri)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["item"] for row in rows] == sorted(path.name for path in documents.iterdir())


def test_dead_items_are_listed_and_brought_back(
    server: EmbeddedPostgres, job: str, tmp_path: Path
) -> None:
    texts = {
        "a": "exit",
        "b": "good",
        "c": "raise canary",
    }
    enqueue(server.uri, job, tmp_path, [{"id": name, "text": text} for name, text in texts.items()])
    run = ("run", job, "--predictor", FAULTY, "--set", "max_failures=1", "--events", tmp_path / "e")
    done = run_command(*run, uri=server.uri)
    listed = run_command(
        "failures",
        job,
        "--json",
        uri=server.uri,
        code=EXIT_FINDINGS,
    ).stdout
    found = sorted(
        (f["item"], f["reason"], f["failures"], f["message"])
        for f in json.loads(listed)["failures"]
    )
    assert [row[:3] for row in found] == [("a", "ProcessDied", 1), ("c", "ValueError", 1)]
    assert found[1][3].startswith("asked to by")
    assert (
        "ValueError: asked to by"
        in run_command(
            "failures",
            job,
            uri=server.uri,
            code=EXIT_FINDINGS,
        ).stdout
    )
    assert "canary" not in done.stdout + done.stderr + listed + (tmp_path / "e").read_text()
    redrive = ("failures", job, "--redrive")
    assert (
        "the item is done"
        in run_command(
            *redrive,
            "--item",
            "b",
            uri=server.uri,
            code=EXIT_BAD_INPUT,
        ).stderr
    )
    run_command(*redrive, uri=server.uri)
    assert status_of(server.uri, job)["failed"] == 0
    run_command(*run, uri=server.uri)
    status = status_of(server.uri, job)
    assert (status["done"], status["failed"]) == (
        1,
        2,
    ), "they were tried again, and are as bad as before"


def test_bad_input_ends_with_exit_2_and_names_the_fix_and_a_loader_with_a_bug_with_70(
    server: EmbeddedPostgres,
    job: str,
    tmp_path: Path,
    documents: Path,
) -> None:
    twice, empty, large = (tmp_path / name for name in ("twice.jsonl", "empty", "large"))
    twice.write_text('{"id": 1, "x": 1}\n{"id": 1, "x": 2}\n')
    empty.mkdir()
    large.mkdir()
    (large / "large.txt").write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    run_command("enqueue", job, "--source", documents, uri=server.uri)
    cases: list[tuple[str, tuple[object, ...], str]] = [
        ("unknown", ("status", "no-such-job"), server.uri),
        ("no item", ("enqueue", f"{job}-e", "--source", empty), server.uri),
        ("same id and different content", ("enqueue", f"{job}-t", "--source", twice), server.uri),
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
        ("the path cannot be used", ("run", job, "--events", twice / "e"), server.uri),
        (
            "must be given together",
            ("enqueue", job, "--source", documents, "--topic", "t"),
            server.uri,
        ),
        ("rejects this user", ("status", job), server.uri.replace("postgres@", "nobody-knows@")),
        ("no database is named", ("status", job), ""),
        ("URI cannot be read", ("status", job), "postgresql://user:canary@[/db"),
        (
            "older than the code",
            ("failures", job, "--redrive"),
            server.uri.replace("/postgres?", "/template1?"),
        ),
    ]
    for expected, words, uri in cases:
        done = run_command(*words, uri=uri, code=EXIT_BAD_INPUT)
        assert expected in done.stderr, (expected, done.stderr)
        assert "fix:" in done.stderr
        assert "Traceback" not in done.stderr and "canary" not in done.stderr
    run = ("run", job, "--predictor", FAULTY.replace(":faulty", ":bug"))
    assert "RuntimeError" in run_command(*run, uri=server.uri, code=EXIT_BUG).stderr
