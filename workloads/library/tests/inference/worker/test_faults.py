"""What goes away, comes twice or stands still around a worker: nothing lost, nothing twice, no help needed."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_COMPLETE
from holdfast.inference.queue.pubsub import PubSubQueue
from holdfast.inference.results import dead_letters
from workloads.library.tests.inference.fake_broker import FakeBroker
from workloads.library.tests.inference.harness import CountingPredictor, Harness, expected, items, working
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
COUNT = 200


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker(ack_deadline_s=2.0)


@pytest.fixture
def harness(harness: Harness, job: str, broker: FakeBroker) -> Harness:
    harness.queue = PubSubQueue(broker, broker, job=job, topic=job, subscription=job, lease_s=2.0)
    return harness


def test_faults_of_the_broker_lose_nothing_and_double_nothing(harness: Harness, broker: FakeBroker) -> None:
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


def test_malformed_messages_get_a_letter_at_once(harness: Harness, broker: FakeBroker, connection: Connection) -> None:
    harness.enqueue(items(harness.job, 3))
    broker.publish(harness.job, b"canary, and no JSON")
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert len(harness.rows()) == 3
    (dead_letter,) = dead_letters.newest(connection, harness.job, 9)
    assert (dead_letter["item"], dead_letter["reason"], dead_letter["failures"]) == (None, "not JSON", 0)
    assert "canary" not in str(dead_letter)


def test_what_only_the_broker_gave_up_is_brought_back_by_its_name(
    harness: Harness, broker: FakeBroker, connection: Connection
) -> None:
    broker.max_attempts = 1
    wanted = items(harness.job, 7)
    harness.enqueue(wanted)
    for _ in range(2):
        harness.queue.release(harness.queue.pull(100, 0.1))  # evicted each time
    assert len(broker.dead) == 7 and harness.rows() == {}
    broker.max_attempts, names = 0, [item.id for item in wanted]
    assert dead_letters.redrive(connection, harness.queue, harness.job, names) == names
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert harness.rows() == expected(wanted)
    for name in (names[0], "no such item"):
        with pytest.raises(InputError, match="the item is done, or not of this job"):
            dead_letters.redrive(connection, harness.queue, harness.job, [name])


def test_a_worker_that_stood_still_cannot_write_what_another_has_claimed(
    pool: ConnectionPool[Connection],
    connection: Connection,
    job: str,
    tmp_path: Path,
    workers: Callable[..., "subprocess.Popen[bytes]"],
) -> None:
    wanted = items(job, 1000)
    harness = Harness(pool=pool, connection=connection, job=job, events=tmp_path / "heir.jsonl")
    harness.enqueue(wanted)
    events = tmp_path / "zombie.jsonl"
    quick = ("--set", "lease_s=1", "--set", "micro_batch=4")
    zombie = workers(job, "--predictor", "entropy", *quick, "--events", events)
    until(lambda: events.exists() and events.read_text().count('"stored"') > 3)
    zombie.send_signal(signal.SIGSTOP)
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    before = harness.rows()
    zombie.send_signal(signal.SIGCONT)
    assert zombie.wait(60) == EXIT_COMPLETE
    assert harness.rows() == before == expected(wanted)
