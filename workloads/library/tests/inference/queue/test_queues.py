"""One behaviour over every queue: PostgreSQL, real clients on the fake broker, Google's emulator."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path

import grpc
import pytest
from google.cloud import pubsub_v1
from psycopg import Connection

from holdfast.drill.serving.fleet import free_port
from holdfast.inference.enqueue import enqueue
from holdfast.inference.items import Item
from holdfast.inference.queue.postgres import PostgresQueue
from holdfast.inference.queue.protocol import Lease, Queue
from holdfast.inference.queue.pubsub import PubSubQueue
from workloads.library.tests.inference import fake_broker_server
from workloads.library.tests.inference.fake_broker import FakeBroker
from workloads.library.tests.inference.harness import items

pytestmark = pytest.mark.process  # PostgreSQL, and Google's emulator where it is installed

# longer than any pause of a loaded machine; the test of the end of leases asks for SHORT_S
LEASE_S = 30.0
SHORT_S = 1.0
Enqueued = Callable[[int], list[Item]]


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
        # Never fails CI: the component comes with gcloud alone, and the suite runs on the fake
        # broker too. The Go client's pstest can be built anywhere, but an ack of an ended lease
        # works there and not on the service.
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
def queue(request: pytest.FixtureRequest, job: str, lease_s: float) -> Generator[Queue]:
    """`lease_s` is what a test may choose."""
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
def enqueued(queue: Queue, connection: Connection, job: str) -> Enqueued:
    def enqueued(count: int) -> list[Item]:
        wanted = items(job, count)
        enqueue(connection, queue, job, wanted)
        return wanted

    return enqueued


def pulled(queue: Queue, count: int, *, within_s: float = 30.0) -> list[Lease]:
    """The newest deliveries of `count` items: a queue may hand them out in parts."""
    leases: dict[str, Lease] = {}
    until = time.monotonic() + within_s
    while len(leases) < count and time.monotonic() < until:
        leases |= {
            lease.item.id: lease for lease in queue.pull(count - len(leases), 1.0) if lease.item
        }
    assert len(leases) == count
    return list(leases.values())


def test_one_item_is_held_by_one_worker_only(queue: Queue, enqueued: Enqueued) -> None:
    """Delivered whole, and once acked it never comes back."""
    wanted = enqueued(20)
    leases = pulled(queue, 20)
    assert {lease.item for lease in leases} == set(wanted)
    assert len({lease.ack_id for lease in leases}) == 20
    assert queue.pull(10, 0.5) == []
    queue.ack(leases)
    queue.release(leases)  # would bring back at once what is still there
    assert queue.pull(10, 1.0) == []


def test_what_is_released_comes_back_at_once_and_an_extension_under_way_holds_nothing(
    queue: Queue, enqueued: Enqueued
) -> None:
    """The thread that keeps leases asks beside the one that gives them back."""
    enqueued(2)
    # Pub/Sub knows a message by its old ack id until its delay is over.
    for delay_s in (0.0,) if isinstance(queue, PubSubQueue) else (0.0, 0.5):
        first = pulled(queue, 2)
        queue.release(first, delay_s)
        queue.extend(first, 60.0)
    second = pulled(queue, 2, within_s=LEASE_S - 5.0)
    assert {lease.item for lease in second} == {lease.item for lease in first}
    assert not {lease.ack_id for lease in second} & {lease.ack_id for lease in first}


def test_an_extension_replaces_the_lease(queue: Queue, enqueued: Enqueued) -> None:
    enqueued(2)
    longer, shorter = pulled(queue, 2)
    queue.extend([shorter], SHORT_S)
    queue.extend([longer], 60.0)
    (again,) = pulled(queue, 1)
    assert again.item == shorter.item
    assert queue.pull(10, 2 * SHORT_S) == []


@pytest.mark.parametrize("lease_s", [SHORT_S])
def test_an_ack_of_an_ended_lease_does_nothing(queue: Queue, enqueued: Enqueued) -> None:
    enqueued(1)
    (stale,) = pulled(queue, 1)
    (newer,) = pulled(queue, 1)
    queue.ack([stale])
    queue.release([newer])
    (newest,) = pulled(queue, 1)
    assert newest.item == stale.item
    assert len({lease.ack_id for lease in (stale, newer, newest)}) == 3


def test_items_of_a_job_that_nobody_knows_are_put_off_for_long() -> None:
    """A subscription shared with another database: its worker, or the broker's dead-letter topic,
    gets them whole.
    """
    now = [0.0]
    broker = FakeBroker(clock=lambda: now[0])
    mine, theirs = (
        PubSubQueue(
            broker,
            broker,
            job=job,
            topic="t",
            subscription="t",
            lease_s=LEASE_S,
        )
        for job in ("a", "b")
    )
    theirs.publish(items("b", 1))
    assert mine.pull(1, 0.0) == []
    now[0] += 599.0
    assert theirs.pull(1, 0.0) == []
    now[0] += 2.0
    assert len(theirs.pull(1, 0.0)) == 1
