"""Tests of faults around a worker: outages, duplicates and kills lose and repeat nothing."""

import json
import subprocess
import sys
import time

import pytest
from psycopg import Connection

from holdfast.inference.items import Item
from holdfast.inference.queue.pubsub import PubSubQueue
from holdfast.inference.results import dead_letters
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from workloads.library.tests.inference.fake_broker import FakeBroker
from workloads.library.tests.inference.harness import (
    CountingPredictor,
    Harness,
    expect_rows,
    items,
    run_in_thread,
)
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
COUNT = 200


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker(ack_deadline_s=2.0)


@pytest.fixture
def harness(harness: Harness, job: str, broker: FakeBroker) -> Harness:
    harness.queue = PubSubQueue(
        broker,
        broker,
        job=job,
        topic=job,
        subscription=job,
        lease_s=2.0,
    )
    return harness


def test_broker_faults_lose_and_repeat_nothing(harness: Harness, broker: FakeBroker) -> None:
    documents = items(harness.job, COUNT)
    harness.enqueue(documents)
    with run_in_thread(harness):
        broker.duplicate_share = 0.2
        broker.unavailable = True
        until(lambda: broker.refusals)
        broker.unavailable = False
        broker.clock = lambda: time.monotonic() + 3600.0  # every lease ends
    assert harness.rows() == expect_rows(documents)
    assert harness.count_items("stored") == COUNT


def test_malformed_messages_get_a_dead_letter_at_once(
    harness: Harness, broker: FakeBroker, connection: Connection
) -> None:
    harness.enqueue(items(harness.job, 3))
    broker.publish(harness.job, b"canary, and no JSON")
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert len(harness.rows()) == 3
    (letter,) = dead_letters.list_newest(connection, harness.job, 9)
    assert letter["item"] is None
    assert letter["reason"] == "not JSON"
    assert letter["failures"] == 0
    assert "canary" not in str(letter)


def test_a_workers_login_may_requeue_dead_items(harness: Harness, connection: Connection) -> None:
    """The runbook's command runs in a worker's pod, which may delete no dead letter."""
    harness.enqueue([Item(job=harness.job, id="bad", body=b"\x00never")])
    for _ in range(2):
        assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
        (letter,) = dead_letters.list_newest(connection, harness.job, 9)
        assert letter["item"] == "bad"
        connection.execute("SET ROLE holdfast_worker")
        assert dead_letters.redrive(
            connection,
            harness.queue,
            harness.job,
            [],
        ) == ["bad"]
        connection.execute("RESET ROLE")
        assert dead_letters.list_newest(connection, harness.job, 9) == []


def test_kills_at_every_step_lose_and_repeat_nothing() -> None:
    """This is a sample; `make bench-batch` kills 500 times."""
    command = [
        sys.executable,
        "-m",
        "workloads.library.tests.bench.batches.kills",
        "--kills",
        "26",
        "--seed",
        "7",
    ]
    bench = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
    )
    result = json.loads(bench.stdout.splitlines()[-1])
    assert all(result["goals"].values()), result
    assert bench.returncode == 0, result


def test_items_that_the_broker_dropped_are_requeued_by_name(
    harness: Harness, broker: FakeBroker, connection: Connection
) -> None:
    broker.max_attempts = 1
    documents = items(harness.job, 7)
    harness.enqueue(documents)
    for _ in range(2):
        harness.queue.release(harness.queue.pull(100, 0.1))  # evicted each time
    assert len(broker.dead) == 7
    assert harness.rows() == {}
    broker.max_attempts = 0
    names = [item.id for item in documents]
    assert dead_letters.redrive(connection, harness.queue, harness.job, names) == names
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert harness.rows() == expect_rows(documents)
    for name in (names[0], "no such item"):
        with pytest.raises(InputError, match="the item is done, or not of this job"):
            dead_letters.redrive(
                connection,
                harness.queue,
                harness.job,
                [name],
            )
