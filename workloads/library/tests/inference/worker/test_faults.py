"""What goes away, comes twice or stands still around a worker: nothing lost, nothing twice, no help needed."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.contract.exit_codes import EXIT_COMPLETE
from holdfast.inference.enqueue import hand_over
from holdfast.inference.items import Item
from holdfast.inference.queue.pubsub import PubSubQueue, recover
from holdfast.inference.results import dead_letters
from holdfast.inference.results.dead_letters import queue_again
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from workloads.library.tests.inference.fake_broker import FakeBroker
from workloads.library.tests.inference.harness import CountingPredictor, Harness, expected, items, working
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
COUNT = 300


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker(ack_deadline_s=2.0, seed=5)


@pytest.fixture
def harness(harness: Harness, job: str, broker: FakeBroker) -> Harness:
    harness.queue = PubSubQueue(broker, broker, job=job, topic=job, subscription=job, lease_s=2.0)
    return harness


def test_duplicate_deliveries_are_stored_once(harness: Harness, broker: FakeBroker) -> None:
    broker.duplicate_share = 0.2
    wanted = items(harness.job, COUNT)
    harness.enqueue(wanted)
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert harness.rows() == expected(wanted)
    assert sum(e["items"] for e in harness.event_lines("stored")) == COUNT


def test_an_outage_of_the_broker_is_waited_for(harness: Harness, broker: FakeBroker) -> None:
    wanted = items(harness.job, COUNT)
    harness.enqueue(wanted)
    with working(harness):
        broker.unavailable = True
        until(lambda: broker.refused)
        broker.unavailable = False
    assert harness.rows() == expected(wanted)


def test_a_jump_of_the_clock_ends_leases_and_loses_nothing(harness: Harness, broker: FakeBroker) -> None:
    wanted = items(harness.job, COUNT)
    harness.enqueue(wanted)
    with working(harness):
        broker.clock = lambda: time.monotonic() + 3600.0
    assert harness.rows() == expected(wanted)


def test_malformed_messages_get_a_letter_at_once_which_reaches_the_topic(
    harness: Harness, broker: FakeBroker, pool: ConnectionPool[Connection]
) -> None:
    harness.enqueue(items(harness.job, 3))
    broker.publish(harness.job, b"canary, and no JSON")
    assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert len(harness.rows()) == 3
    assert dead_letters.forward(pool, broker, "dead", harness.job) == 1
    assert dead_letters.forward(pool, broker, "dead", harness.job) == 0
    pulled = broker.pull(request={"subscription": "dead", "max_messages": 9}, timeout=1.0)
    (dead_letter,) = [json.loads(m.message.data) for m in pulled.received_messages]
    assert (dead_letter["item"], dead_letter["reason"], dead_letter["failures"]) == (None, "not JSON", 0)
    assert "canary" not in json.dumps(dead_letter)


def two_jobs(
    broker: FakeBroker, pool: ConnectionPool[Connection], connection: Connection, job: str, tmp_path: Path
) -> list[Harness]:
    """On one topic and subscription, as nobody should have them."""
    return [
        Harness(
            pool=pool,
            connection=connection,
            job=name,
            events=tmp_path / f"{name}.jsonl",
            queue=PubSubQueue(
                broker, broker, job=name, topic=job, subscription=job, lease_s=2.0,
                hand_over=partial(hand_over, pool),
            ),
        )
        for name in (f"{job}-a", f"{job}-b")
    ]  # fmt: skip


def test_two_jobs_on_one_subscription_dead_letter_nothing(
    broker: FakeBroker, pool: ConnectionPool[Connection], connection: Connection, job: str, tmp_path: Path
) -> None:
    broker.max_attempts = 2  # as many as a message needs that is delivered once
    first, second = two_jobs(broker, pool, connection, job, tmp_path)
    wanted = [items(harness.job, COUNT) for harness in (first, second)]
    for harness, of_job in zip((first, second), wanted, strict=True):
        harness.enqueue(of_job)
    for harness, of_job in zip((first, second), wanted, strict=True):
        assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
        assert harness.rows() == expected(of_job)
    assert broker.dead == []


def test_what_only_the_broker_gave_up_is_brought_back_and_nothing_else_is_taken(
    broker: FakeBroker, pool: ConnectionPool[Connection], connection: Connection, job: str, tmp_path: Path
) -> None:
    broker.max_attempts, broker.dead_topic = 1, f"{job}-dead"
    first, second = two_jobs(broker, pool, connection, job, tmp_path)
    for harness in (first, second):
        harness.enqueue(items(harness.job, 7))
    queue = PubSubQueue(broker, broker, job=job, topic=job, subscription=job, lease_s=2.0)
    for _ in range(2):
        queue.release(queue.pull_of_any_job(100, 0.1))  # evicted each time
    assert len(broker.dead) == 14 and first.rows() == {}
    broker.publish(broker.dead_topic, b'{"v": 1, "item": "a dead letter of ours"}')
    dead = PubSubQueue(
        broker, broker, job=first.job, topic=job, subscription=broker.dead_topic, lease_s=2.0,
    )  # fmt: skip
    found = recover(dead, first.job, lambda names: queue_again(connection, first.job, names))
    assert sorted(found) == [item.id for item in items(first.job, 7)]
    assert broker.left(broker.dead_topic) == 8, "the other job's items and the dead letter stay"
    broker.max_attempts = 0
    assert first.worker(CountingPredictor()).run() == EXIT_COMPLETE
    assert first.rows() == expected(items(first.job, 7))


def test_a_worker_that_stood_still_cannot_write_what_another_has_claimed(
    server: EmbeddedPostgres, pool: ConnectionPool[Connection], connection: Connection, job: str, tmp_path: Path
) -> None:
    wanted = [Item(job=job, id=f"i{n}", body=b"x" * n) for n in range(2000)]
    harness = Harness(pool=pool, connection=connection, job=job, events=tmp_path / "heir.jsonl")
    harness.enqueue(wanted)
    events = tmp_path / "zombie.jsonl"
    command = [sys.executable, "-m", "holdfast", "batch", "run", job, "--predictor", "entropy"]
    command += ["--set", "lease_s=1", "--set", "micro_batch=4", "--events", str(events)]
    zombie = subprocess.Popen(command, env={**os.environ, "HOLDFAST_DATABASE_URL": server.uri})
    try:
        until(lambda: events.exists() and events.read_text().count('"stored"') > 3)
        zombie.send_signal(signal.SIGSTOP)
        assert harness.worker(CountingPredictor()).run() == EXIT_COMPLETE
        before = harness.rows()
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(60) == EXIT_COMPLETE
    finally:
        zombie.kill()
        zombie.wait()
    assert harness.rows() == before == expected(wanted)
