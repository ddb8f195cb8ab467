"""Tests of all queues: PostgreSQL, real clients on the fake broker, Google's emulator."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from pathlib import Path

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from psycopg import Connection

from holdfast.drill.serving.fleet import free_port
from holdfast.inference.enqueue import enqueue
from holdfast.inference.errors import QueueUnavailable
from holdfast.inference.items import Item
from holdfast.inference.queue.postgres import PostgresQueue
from holdfast.inference.queue.protocol import Lease, Queue
from holdfast.inference.queue.pubsub import PubSubQueue
from holdfast.support.errors import InputError
from workloads.library.tests.inference import fake_broker_server
from workloads.library.tests.inference.fake_broker import FakeBroker
from workloads.library.tests.inference.harness import items

pytestmark = pytest.mark.process  # PostgreSQL, and Google's emulator if it is installed

# Longer than any pause of a busy machine; the test of ended leases uses SHORT_S.
LEASE_S = 30.0
SHORT_S = 1.0
Enqueue = Callable[[int], list[Item]]


@pytest.fixture
def lease_s() -> float:
    return LEASE_S


@pytest.fixture(scope="session")
def fake() -> Generator[str]:
    with fake_broker_server.serve(FakeBroker()) as address:
        yield address


@pytest.fixture(scope="session")
def emulator() -> Generator[str]:
    gcloud = shutil.which("gcloud")
    if gcloud:
        folder = Path(os.path.realpath(gcloud)).parents[1] / "platform" / "pubsub-emulator"
    else:
        folder = Path("/nowhere")
    if not (folder / "bin" / "cloud-pubsub-emulator").exists() or not shutil.which("java"):
        # A skip also in CI: only gcloud has this component, and the suite runs on the fake broker
        # too. The Go client's pstest can be built anywhere, but there an ack of an ended lease
        # works, unlike on the service.
        pytest.skip("gcloud's pubsub-emulator is not installed")
    port = free_port()
    command = [str(folder / "bin" / "cloud-pubsub-emulator"), "--host=127.0.0.1", f"--port={port}"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=90)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the wrapper's java child too
        process.wait()


@pytest.fixture(params=["postgres", "fake", "emulator"])
def queue(
    request: pytest.FixtureRequest,
    job: str,
    lease_s: float,
) -> Generator[Queue]:
    """Makes the queue of a job. Tests may override `lease_s`."""
    if request.param == "postgres":
        yield PostgresQueue(request.getfixturevalue("pool"), job, lease_s=lease_s)
        return
    topic = f"projects/test/topics/{job}"
    subscription = f"projects/test/subscriptions/{job}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", request.getfixturevalue(request.param))
        publisher = pubsub_v1.PublisherClient()
        subscriber = pubsub_v1.SubscriberClient()
    with subscriber:
        if request.param == "emulator":
            publisher.create_topic(request={"name": topic})
            subscriber.create_subscription(
                request={
                    "name": subscription,
                    "topic": topic,
                    "ack_deadline_seconds": 10,
                }
            )
        yield PubSubQueue(
            publisher,
            subscriber,
            job=job,
            topic=topic,
            subscription=subscription,
            lease_s=lease_s,
        )
        publisher.stop()
        publisher.transport.close()


@pytest.fixture
def enqueue_items(queue: Queue, connection: Connection, job: str) -> Enqueue:
    def enqueue_items(count: int) -> list[Item]:
        documents = items(job, count)
        enqueue(connection, queue, job, documents)
        return documents

    return enqueue_items


def pull(
    queue: Queue,
    count: int,
    *,
    within_s: float = 30.0,
) -> list[Lease]:
    """Returns the newest deliveries of `count` items, which a queue may deliver in parts."""
    leases: dict[str, Lease] = {}
    deadline = time.monotonic() + within_s
    while len(leases) < count and time.monotonic() < deadline:
        for lease in queue.pull(count - len(leases), 1.0):
            if lease.item:
                leases[lease.item.id] = lease
    assert len(leases) == count
    return list(leases.values())


def get_items(leases: list[Lease]) -> set[Item | None]:
    return {lease.item for lease in leases}


def get_ack_ids(leases: list[Lease]) -> set[str]:
    return {lease.ack_id for lease in leases}


def test_an_item_is_leased_by_one_worker_only(queue: Queue, enqueue_items: Enqueue) -> None:
    """It is delivered with its content, and never again after an ack."""
    documents = enqueue_items(20)
    leases = pull(queue, 20)
    assert get_items(leases) == set(documents)
    assert len(get_ack_ids(leases)) == 20
    assert queue.pull(10, 0.5) == []
    queue.ack(leases)
    queue.release(leases)  # would deliver again at once what is not removed
    assert queue.pull(10, 1.0) == []


def test_released_items_return_at_once_despite_an_extension_in_progress(
    queue: Queue, enqueue_items: Enqueue
) -> None:
    """The thread that extends leases runs next to the one that releases them."""
    enqueue_items(2)
    # Pub/Sub accepts the old ack id of a message until its delay is over.
    delays_s = [0.0] if isinstance(queue, PubSubQueue) else [0.0, 0.5]
    for delay_s in delays_s:
        first = pull(queue, 2)
        queue.release(first, delay_s)
        queue.extend(first, 60.0)
    second = pull(queue, 2, within_s=LEASE_S - 5.0)
    assert get_items(second) == get_items(first)
    assert get_ack_ids(second).isdisjoint(get_ack_ids(first))


def test_an_extension_replaces_the_lease(queue: Queue, enqueue_items: Enqueue) -> None:
    enqueue_items(2)
    longer, shorter = pull(queue, 2)
    queue.extend([shorter], SHORT_S)
    queue.extend([longer], 60.0)
    (lease,) = pull(queue, 1)
    assert lease.item == shorter.item
    assert queue.pull(10, 2 * SHORT_S) == []


@pytest.mark.parametrize("lease_s", [SHORT_S])
def test_an_ack_after_the_lease_does_nothing(queue: Queue, enqueue_items: Enqueue) -> None:
    enqueue_items(1)
    (stale,) = pull(queue, 1)
    (newer,) = pull(queue, 1)
    queue.ack([stale])
    queue.release([newer])
    (newest,) = pull(queue, 1)
    assert newest.item == stale.item
    assert len(get_ack_ids([stale, newer, newest])) == 3


def test_items_from_an_unknown_job_are_deferred_for_long() -> None:
    """The other worker of a shared subscription gets these items unchanged."""
    now = [0.0]
    broker = FakeBroker(clock=lambda: now[0])

    def open_queue(job: str) -> PubSubQueue:
        return PubSubQueue(
            broker,
            broker,
            job=job,
            topic="t",
            subscription="t",
            lease_s=LEASE_S,
        )

    queue = open_queue("a")
    other_queue = open_queue("b")
    other_queue.publish(items("b", 1))
    assert queue.pull(1, 0.0) == []
    now[0] += 599.0
    assert other_queue.pull(1, 0.0) == []
    now[0] += 2.0
    assert len(other_queue.pull(1, 0.0)) == 1


class FailingClient:
    """Answers every call with one error, a publication through its future."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def publish(self, *_: object, **__: object) -> "Future[str]":
        future: Future[str] = Future()
        future.set_exception(self._error)
        return future

    def fail(self, **_: object) -> None:
        raise self._error

    pull = acknowledge = modify_ack_deadline = fail


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (exceptions.NotFound("no such topic"), InputError),
        (exceptions.PermissionDenied("not you"), InputError),
        (exceptions.InvalidArgument("no name of a topic"), InputError),
        (exceptions.Unknown("a stream was lost"), QueueUnavailable),
    ],
    ids=lambda value: type(value).__name__,
)
def test_googles_error_is_bad_input_or_an_outage(
    error: Exception, expected: type[Exception]
) -> None:
    client = FailingClient(error)
    queue = PubSubQueue(
        client,
        client,
        job="a",
        topic="t",
        subscription="s",
        lease_s=LEASE_S,
    )
    leases = [Lease(ack_id="1", item=None)]
    calls: list[Callable[[], object]] = [
        lambda: queue.publish(items("a", 1)),
        lambda: queue.pull(1, 0.0),
        lambda: queue.extend(leases, 1.0),
        lambda: queue.ack(leases),
    ]
    for call in calls:
        with pytest.raises(expected) as caught:
            call()
        if isinstance(caught.value, InputError):
            assert str(error) in caught.value.got
