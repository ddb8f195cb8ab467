"""What kills the predicting process: counted against the item when it is the item's fault, and only then."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.contract.environment import ENV_DATABASE
from holdfast.contract.exit_codes import EXIT_BUG, EXIT_COMPLETE, EXIT_PREEMPTED
from holdfast.inference.errors import ItemFault, ProcessDied
from holdfast.inference.items import Item
from holdfast.inference.predictor.proxy import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.queue.postgres import PostgresQueue
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.inference.worker.batch_worker import EXIT_DEVICE_LOST
from holdfast.inference.worker.telemetry import Failpoint
from holdfast.runtime.pidfiles import running
from holdfast.runtime.shutdown import Shutdown
from workloads.library.tests.inference.harness import QUICK, Harness, fill
from workloads.library.tests.processes import children, until

pytestmark = pytest.mark.process
FAULTY = "workloads.library.tests.inference.faulty_predictors"
SETTINGS = replace(QUICK, settle_s=0.05)


@pytest.fixture
def harness(harness: Harness) -> Harness:
    harness.settings = SETTINGS
    return harness


@contextmanager
def process(name: str, *, timeout_s: float = 60.0) -> Generator[ProcessPredictor]:
    with closing(ProcessPredictor(PredictorSpec(name=f"{FAULTY}:{name}"), timeout_s=timeout_s)) as predictor:
        predictor.load()
        yield predictor


def bodies(job: str, *wanted: str) -> list[Item]:
    return [Item(job=job, id=f"{n:02d} {body}", body=body.encode()) for n, body in enumerate(wanted)]


def failures(harness: Harness) -> int:
    row = harness.connection.execute(
        "SELECT sum(failures) FROM holdfast.result WHERE job = %s", (harness.job,)
    ).fetchone()
    harness.connection.commit()
    return int(row[0] or 0) if row else 0


def test_items_that_kill_the_process_are_dead_lettered_once_and_the_others_are_done(harness: Harness) -> None:
    deadly = ("segfault", "exit", "out of memory")
    wanted = bodies(harness.job, *(f"good {n}" for n in range(6)), *deadly, *(f"good {n}" for n in range(6)))
    harness.enqueue(wanted)
    with process("faulty") as predictor:
        assert harness.worker(predictor).run() == EXIT_COMPLETE
    states = {item: status for item, (status, _) in harness.rows().items()}
    assert states == {item.id: "dead" if item.body.decode() in deadly else "done" for item in wanted}
    dead_letters = harness.connection.execute(
        "SELECT reason, failures FROM holdfast.dead_letter WHERE job = %s", (harness.job,)
    ).fetchall()
    assert dead_letters == [("ProcessDied", 3)] * 3
    errors = harness.connection.execute(
        "SELECT error FROM holdfast.result WHERE job = %s AND error <> ''", (harness.job,)
    )
    messages = " ".join(error for (error,) in errors)
    assert all(text in messages for text in ("SIGSEGV", "exited with 3", "SIGKILL"))


def test_a_device_on_which_everything_dies_counts_against_no_item(harness: Harness) -> None:
    harness.enqueue(bodies(harness.job, "a", "b", "c"))
    with process("dying") as predictor:
        assert harness.worker(predictor).run() == EXIT_DEVICE_LOST
    assert failures(harness) == 0
    assert len(harness.queue.pull(9, 0.0)) == 3, "given back at once"


def test_a_process_that_dies_with_an_eviction_counts_against_no_item(harness: Harness) -> None:
    """As when a node goes: the child is gone a moment before the worker is asked to leave."""
    harness.settings = replace(QUICK, settle_s=60.0)
    harness.enqueue(bodies(harness.job, "segfault"))
    shutdown = Shutdown()
    with process("faulty") as predictor:
        worker = harness.worker(predictor, shutdown)
        threading.Thread(target=request_once_dead, args=(predictor, shutdown), daemon=True).start()
        assert worker.run() == EXIT_PREEMPTED
    assert failures(harness) == 0


def request_once_dead(predictor: ProcessPredictor, shutdown: Shutdown) -> None:
    while predictor.pid is not None:
        time.sleep(0.01)
    shutdown.request("eviction")


def test_the_predicting_process_sees_no_way_into_the_database(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_DATABASE, "postgresql://user:secret@host/db")
    monkeypatch.setenv("PGPASSWORD", "secret")
    harness.enqueue(bodies(harness.job, ENV_DATABASE, "PGPASSWORD", "PATH"))
    with process("faulty") as predictor:
        harness.worker(predictor).run()
    assert [value["environment"] for _, (_, value) in sorted(harness.rows().items())] == [False, False, True]


def test_the_process_goes_with_a_killed_worker_and_its_items_come_back(
    server: EmbeddedPostgres, pool: ConnectionPool[Connection], connection: Connection, job: str, tmp_path: Path
) -> None:
    fill(connection, PostgresQueue(pool, job, lease_s=1.0), job, bodies(job, "hang"))
    run = [sys.executable, "-m", "holdfast", "batch", "run", job, "--set", "lease_s=1", "--events", str(tmp_path / "e")]
    environment = {**os.environ, ENV_DATABASE: server.uri}
    with subprocess.Popen([*run, "--predictor", f"{FAULTY}:faulty"], env=environment) as worker:
        predicting = until(lambda: children(worker.pid))
        until(lambda: held(connection, job))
        worker.send_signal(signal.SIGKILL)
    until(lambda: not any(running(pid) for pid in predicting))
    queue = PostgresQueue(pool, job, lease_s=1.0)
    until(lambda: queue.pull(1, 0.1))


def test_the_process_goes_on_with_what_was_handed_over_ahead_before_anybody_asks(tmp_path: Path) -> None:
    first, second = ([str(tmp_path / name).encode()] for name in ("first", "second"))
    with process("echo") as predictor:
        predictor.prepare(first)
        predictor.prepare(second)
        until((tmp_path / "second").exists)
        assert predictor.predict(second) == [{"body": second[0].decode()}]
        assert predictor.predict(first) == [{"body": first[0].decode()}], "kept until it is asked for"


def test_requests_and_answers_larger_than_a_pipe_do_not_wait_for_each_other() -> None:
    batches = [[byte * 300_000] * 10 for byte in (b"a", b"b", b"c")]
    with process("echo") as predictor:
        for batch in batches:
            predictor.prepare(batch)
        assert [len(predictor.predict(batch)) for batch in batches] == [10] * 3


def test_what_is_handed_over_ahead_kills_only_itself() -> None:
    with process("echo") as predictor:
        predictor.prepare([b"good"])
        predictor.prepare([b"segfault"])
        predictor.prepare([b"behind"])
        assert predictor.predict([b"good"]) == [{"body": "good"}]
        with pytest.raises(ProcessDied, match="SIGSEGV"):
            predictor.predict([b"segfault"])
        assert predictor.predict([b"behind"]) == [{"body": "behind"}]


def test_who_asks_while_another_micro_batch_kills_is_not_blamed() -> None:
    """As when a micro-batch fails and is tried in halves: the next one is in the process by then."""
    with process("echo") as predictor:
        predictor.prepare([b"raise", b"good"])
        predictor.prepare([b"segfault"])
        with pytest.raises(ItemFault, match="asked to"):
            predictor.predict([b"raise", b"good"])
        assert predictor.predict([b"good"]) == [{"body": "good"}]
        with pytest.raises(ProcessDied, match="SIGSEGV"):
            predictor.predict([b"segfault"])


def test_a_stop_gives_back_what_was_handed_over_ahead(harness: Harness, tmp_path: Path) -> None:
    harness.settings = replace(SETTINGS, micro_batch=4, fill_s=5.0)
    harness.enqueue(bodies(harness.job, *(str(tmp_path / f"{n:02d}") for n in range(40))))
    shutdown = Shutdown()

    def at(step: Failpoint) -> None:
        if step is Failpoint.PREDICTED and (tmp_path / "07").exists():  # the second micro-batch is there already
            shutdown.request("eviction")

    with process("echo") as predictor:
        assert harness.worker(predictor, shutdown, at).run() == EXIT_PREEMPTED
    states = Counter(status for status, _ in harness.rows().values())
    assert len(harness.queue.pull(99, 0.0)) == 40 - states["done"], "all that is not done can be had at once"
    assert states["held"] == 0


def test_a_loader_with_a_bug_ends_the_worker_as_a_bug(server: EmbeddedPostgres, connection: Connection,
    pool: ConnectionPool[Connection], job: str) -> None:  # fmt: skip
    fill(connection, PostgresQueue(pool, job, lease_s=1.0), job, bodies(job, "good"))
    run = [sys.executable, "-m", "holdfast", "batch", "run", job, "--predictor", f"{FAULTY}:odd"]
    done = subprocess.run(run, env={**os.environ, ENV_DATABASE: server.uri}, capture_output=True, text=True)
    assert done.returncode == EXIT_BUG
    assert "RuntimeError" in done.stderr


def held(connection: Connection, job: str) -> bool:
    row = connection.execute("SELECT count(*) FROM holdfast.result WHERE job = %s", (job,)).fetchone()
    connection.commit()
    return bool(row and row[0])
