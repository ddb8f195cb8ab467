"""The commands as a user and Kubernetes meet them: the worker as a real process with real signals, the other
verbs through the same entry in this one."""

import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import psycopg
import pytest

from holdfast.commands import app
from holdfast.contract.environment import ENV_GPUS
from holdfast.contract.errors import run_cli
from holdfast.contract.exit_codes import EXIT_BAD_INPUT, EXIT_FINDINGS
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres

pytestmark = pytest.mark.process
BATCH = (sys.executable, "-m", "holdfast", "batch")
FAULTY = "workloads.library.tests.inference.faulty_predictors:faulty"


@dataclass
class Done:
    code: int
    stdout: str
    stderr: str


def run_command(*arguments: object, uri: str = "", code: int = 0) -> Done:
    run = as_process if arguments[0] == "run" else in_this_process
    done = run([str(word) for word in arguments], {**os.environ, "HOLDFAST_DATABASE_URL": uri})
    assert done.code == code, (arguments, done)
    return done


def as_process(arguments: list[str], environment: dict[str, str]) -> Done:
    done = subprocess.run([*BATCH, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    return Done(done.returncode, done.stdout, done.stderr)


def in_this_process(arguments: list[str], environment: dict[str, str]) -> Done:
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
        try:
            run_cli(lambda: app(["batch", *arguments]))
        except SystemExit as end:
            code = end.code
    return Done(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def test_a_folder_is_queued_scored_shown_and_exported(
    server: EmbeddedPostgres, job: str, documents: Path, tmp_path: Path
) -> None:
    first = run_command("enqueue", job, "--source", documents, "--json", uri=server.uri)
    again = run_command("enqueue", job, "--source", documents, "--json", uri=server.uri)
    assert [json.loads(done.stdout)["new"] for done in (first, again)] == [100, 0]
    run_command("run", job, "--predictor", "entropy", "--events", tmp_path / "e.jsonl", uri=server.uri)
    status = json.loads(run_command("status", job, "--json", uri=server.uri).stdout)
    assert (status["total"], status["done"], status["waiting"], status["replicas_wanted"]) == (100, 100, 0, 0)
    shown = run_command("status", job, uri=server.uri).stdout.splitlines()
    assert [line.split(maxsplit=1)[1] for line in shown if line.startswith("done")] == ["100 of 100 (100.0%)"]
    lines = tmp_path / "o.jsonl"
    run_command("export", job, "--out", lines, uri=server.uri)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["item"] for row in rows] == sorted(path.name for path in documents.iterdir())


def test_a_promised_gpu_that_is_not_there_is_bad_input(
    server: EmbeddedPostgres, job: str, documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never the CPU at the price of a GPU, whatever the predictor computes on."""
    monkeypatch.setenv(ENV_GPUS, "64")
    run_command("enqueue", job, "--source", documents, uri=server.uri)
    done = run_command("run", job, "--predictor", "entropy", uri=server.uri, code=EXIT_BAD_INPUT)
    assert "the pod has GPUs configured" in done.stderr


def test_dead_items_are_listed_and_brought_back(server: EmbeddedPostgres, job: str, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"id": "a", "text": "exit"}\n{"id": "b", "text": "good"}\n{"id": "c", "text": "raise canary"}\n')
    run_command("enqueue", job, "--source", source, "--body-column", "text", uri=server.uri)
    run = ("run", job, "--predictor", FAULTY, "--set", "max_failures=1", "--events", tmp_path / "e")
    done = run_command(*run, uri=server.uri)
    listed = run_command("failures", job, "--json", uri=server.uri, code=EXIT_FINDINGS).stdout
    found = sorted((f["item"], f["reason"], f["failures"], f["message"]) for f in json.loads(listed)["failures"])
    assert [row[:3] for row in found] == [("a", "ProcessDied", 1), ("c", "ValueError", 1)]
    assert found[1][3].startswith("asked to by")
    assert "ValueError: asked to by" in run_command("failures", job, uri=server.uri, code=EXIT_FINDINGS).stdout
    assert "canary" not in done.stdout + done.stderr + listed + (tmp_path / "e").read_text()
    assert (
        "the item is done"
        in run_command("failures", job, "--redrive", "--item", "b", uri=server.uri, code=EXIT_BAD_INPUT).stderr
    )
    run_command("failures", job, "--redrive", uri=server.uri)
    assert json.loads(run_command("status", job, "--json", uri=server.uri).stdout)["failed"] == 0
    run_command(*run, uri=server.uri)
    status = json.loads(run_command("status", job, "--json", uri=server.uri).stdout)
    assert (status["done"], status["failed"]) == (1, 2), "they were tried again, and are as bad as before"


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
    run_command("enqueue", job, "--source", documents, uri=server.uri)
    cases: list[tuple[str, tuple[object, ...], str]] = [
        ("unknown", ("status", "no-such-job"), server.uri),
        ("no item", ("enqueue", f"{job}-e", "--source", empty), server.uri),
        ("has no such column", ("enqueue", f"{job}-c", "--source", twice, "--id-column", "key"), server.uri),
        ("same id and different content", ("enqueue", f"{job}-t", "--source", twice), server.uri),
        ("larger than a message", ("enqueue", f"{job}-l", "--source", large), server.uri),
        ("cannot be read", ("enqueue", job, "--source", tmp_path / "nothing"), server.uri),
        ("job name", ("status", "a job; DROP TABLE"), server.uri),
        ("needs a model", ("run", job), server.uri),
        ("the model is ambiguous", ("run", job, "--checkpoints", empty), server.uri),
        ("must be given together", ("run", job, "--topic", "projects/p/topics/t"), server.uri),
        ("rejects this user", ("status", job), server.uri.replace("postgres@", "nobody-knows@")),
        ("no database is named", ("status", job), ""),
        ("older than the code", ("failures", job, "--redrive"), server.uri.replace("/postgres?", "/template1?")),
    ]

    def run_case(case: tuple[str, tuple[object, ...], str]) -> Done:
        return run_command(*case[1], uri=case[2], code=EXIT_BAD_INPUT)

    with ThreadPoolExecutor(3) as threads:
        processes = list(threads.map(run_case, [case for case in cases if case[1][0] == "run"]))
    others = [run_case(case) for case in cases if case[1][0] != "run"]
    expectations = sorted(cases, key=lambda case: case[1][0] != "run")
    for (expected, *_), done in zip(expectations, [*processes, *others], strict=True):
        assert expected in done.stderr, (expected, done.stderr)
        assert "fix:" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_scaling_view_says_what_the_exporter_shows(server: EmbeddedPostgres, job: str, documents: Path) -> None:
    in_an_hour = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    run_command("enqueue", job, "--source", documents, "--deadline", in_an_hour, uri=server.uri)
    assert "cannot be read" in run_command(
        "enqueue", job, "--source", documents, "--deadline", "tomorrow", uri=server.uri, code=EXIT_BAD_INPUT
    ).stderr  # fmt: skip

    def scaling() -> tuple[int, float, int]:
        with psycopg.connect(server.uri) as connection:
            connection.execute("SET ROLE holdfast_exporter")
            query = "SELECT backlog_items, oldest_seconds, replicas_wanted FROM holdfast.job_scaling WHERE job = %s"
            row = connection.execute(query, (job,)).fetchone()
        assert row is not None
        return row

    backlog, oldest, replicas = scaling()
    assert (backlog, replicas) == (100, 1), "the speed of a worker is unknown yet"
    assert oldest > 0
    with psycopg.connect(server.uri) as connection:
        # A worker that does an item in ten minutes: 100 items in an hour need 17 of them.
        connection.execute("UPDATE holdfast.job SET fingerprint = 'f' WHERE job = %s", (job,))
        connection.execute(
            "INSERT INTO holdfast.worker (worker, job, fingerprint, done, started_at, seen_at)"
            " VALUES (%s, %s, 'f', 1, now() - interval '10 minutes', now())", (f"{job}-w", job),
        )  # fmt: skip
    assert scaling()[0::2] == (99, 17)
    with psycopg.connect(server.uri) as connection:
        connection.execute("DELETE FROM holdfast.worker WHERE job = %s", (job,))
        connection.execute("UPDATE holdfast.job SET fingerprint = NULL WHERE job = %s", (job,))
    run_command("run", job, "--predictor", "entropy", "--events", os.devnull, uri=server.uri)
    assert scaling() == (0, 0.0, 0)
