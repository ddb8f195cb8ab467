"""What goes away, comes twice or stands still around a worker: nothing lost, nothing twice, no help
needed.
"""

import json
import subprocess
import sys
import time

import pytest
from psycopg import Connection

from holdfast.inference.queue.pubsub import PubSubQueue
from holdfast.inference.results import dead_letters
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from workloads.library.tests.inference.fake_broker import FakeBroker
from workloads.library.tests.inference.harness import (
    CountingPredictor,
    Harness,
    expected,
    items,
    working,
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


def test_faults_of_the_broker_lose_nothing_and_double_nothing(
    harness: Harness, broker: FakeBroker
) -> None:
    wanted = items(harness.job, COUNT)
    harness.enqueue(wanted)
    with working(harness):
        broker.duplicate_share = 0.2
        broker.unavailable = True
        until(lambda: broker.refused)
        broker.unavailable = False
        broker.clock = lambda: time.monotonic() + 3600.0  # every lease ends
    assert harness.rows() == expected(wanted)
    assert sum(e["items"] for e in harness.event_lines("stored")) == COUNT


def test_malformed_messages_get_a_letter_at_once(
    harness: Harness, broker: FakeBroker, connection: Connection
) -> None:
    harness.enqueue(items(harness.job, 3))
    broker.publish(harness.job, b"canary, and no JSON")
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert len(harness.rows()) == 3
    (dead_letter,) = dead_letters.newest(connection, harness.job, 9)
    assert (dead_letter["item"], dead_letter["reason"], dead_letter["failures"]) == (
        None,
        "not JSON",
        0,
    )
    assert "canary" not in str(dead_letter)


def test_kills_at_every_step_lose_nothing_and_double_nothing() -> None:
    """A sample; `make bench-batch` kills 500 times."""
    command = [
        sys.executable,
        "-m",
        "workloads.library.tests.bench.batches.kills",
        "--kills",
        "26",
        "--seed",
        "7",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert all(result["goals"].values()) and done.returncode == 0, result


def test_what_only_the_broker_gave_up_is_brought_back_by_its_name(
    harness: Harness, broker: FakeBroker, connection: Connection
) -> None:
    broker.max_attempts = 1
    wanted = items(harness.job, 7)
    harness.enqueue(wanted)
    for _ in range(2):
        harness.queue.release(harness.queue.pull(100, 0.1))  # evicted each time
    assert len(broker.dead) == 7 and harness.rows() == {}
    broker.max_attempts = 0
    names = [item.id for item in wanted]
    assert dead_letters.redrive(connection, harness.queue, harness.job, names) == names
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert harness.rows() == expected(wanted)
    for name in (names[0], "no such item"):
        with pytest.raises(InputError, match="the item is done, or not of this job"):
            dead_letters.redrive(connection, harness.queue, harness.job, [name])
