"""Composition: from the options of the batch doors to a worker, a queue and a store."""

import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from psycopg import Connection
from psycopg_pool import ConnectionPool

from infra.contract.lifecycle import EXIT_BUG, EXIT_PREEMPTED
from infra.contract.telemetry import KIND_BATCH
from workloads.inference import jobs, schema
from workloads.inference.connect import TRANSIENT, connect, database_uri, open_pool, retried
from workloads.inference.enqueue import enqueue, publish_outbox
from workloads.inference.items import Item
from workloads.inference.predictor_proxy import ProcessPredictor
from workloads.inference.predictor_spec import PredictorSpec
from workloads.inference.predictors import LoaderFailed, Predictor, PredictorBroken
from workloads.inference.queue import Queue
from workloads.inference.queue_postgres import PostgresQueue
from workloads.inference.redrive import redrive
from workloads.inference.results_postgres import PostgresResults
from workloads.inference.settings import WorkerSettings
from workloads.inference.steps import Report
from workloads.inference.worker import EXIT_DEVICE_LOST, Worker
from workloads.runtime.events import EventLog
from workloads.runtime.shutdown import Shutdown, of_process

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    job: str
    database: str
    predictor: PredictorSpec
    events: Path | None
    settings: WorkerSettings
    recompute: bool
    broker: "Broker | None" = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Broker:
    """Pub/Sub instead of the queue in PostgreSQL."""

    topic: str
    subscription: str
    dead_topic: str = ""


def enqueue_source(
    database: str,
    job: str,
    items: Iterable[Item],
    broker: Broker | None,
    progress: Callable[[int], None],
    deadline: datetime | None = None,
) -> dict[str, int]:
    uri = database_uri(database)
    with connect(uri) as connection:
        schema.require_current(connection)
        jobs.register(connection, job, deadline)
        with open_pool(uri) as pool, opened_queue(pool, job, broker) as queue:
            done = enqueue(connection, queue, job, items, progress)
    return asdict(done)


def redrive_job(database: str, job: str, items: list[str], broker: Broker | None) -> list[str]:
    uri = database_uri(database)
    with connect(uri) as connection:
        schema.require_current(connection)
        with open_pool(uri) as pool, opened_queue(pool, job, broker) as queue:
            revived = redrive(connection, job, items)
            publish_outbox(connection, queue, job)
    return revived


@contextmanager
def opened_queue(
    pool: ConnectionPool[Connection],
    job: str,
    broker: Broker | None,
    *,
    lease_s: float = WorkerSettings().lease_s,
    sleep: Callable[[float], bool | None] = time.sleep,
) -> Generator[Queue]:
    if broker is None:
        yield PostgresQueue(pool, job, lease_s=lease_s, sleep=sleep)
        return
    from google.cloud import pubsub_v1

    from workloads.inference import letters
    from workloads.inference.queue_pubsub import PubSubQueue

    publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
    try:
        yield PubSubQueue(
            publisher, subscriber, job=job, topic=broker.topic, subscription=broker.subscription, lease_s=lease_s
        )
        if broker.dead_topic:
            letters.forward(pool, publisher, broker.dead_topic, job)
    finally:
        publisher.stop()
        publisher.transport.close()
        subscriber.close()


def run_worker(launch: Launch) -> int:
    """The exit code of the process."""
    shutdown = of_process()  # first, so that a notice during the slow start is heard
    began = time.monotonic()
    uri = database_uri(launch.database)
    with EventLog.open(launch.events, job=launch.job, kind=KIND_BATCH) as events:
        try:
            predictor, fingerprint = _loaded(launch, uri, shutdown, Report(events))
        except (PredictorBroken, LoaderFailed) as error:
            print(f"the model cannot be loaded: {error}", file=sys.stderr)
            return EXIT_DEVICE_LOST if isinstance(error, PredictorBroken) else EXIT_BUG
        except TRANSIENT as error:
            return _gave_up(error, shutdown)
        events.emit("start", rank=0, world_size=1, attempt=0)
        with closing(predictor):
            load_s = time.monotonic() - began
            code = _work(launch, uri, predictor, fingerprint, shutdown, events, load_s)
        events.emit("exit", code=code, step=0)
    return code


def _work(
    launch: Launch,
    uri: str,
    predictor: Predictor,
    fingerprint: str,
    shutdown: Shutdown,
    events: EventLog,
    load_s: float,
) -> int:
    settings = launch.settings
    try:
        with (
            open_pool(uri) as pool,
            opened_queue(pool, launch.job, launch.broker, lease_s=settings.lease_s, sleep=shutdown.wait) as queue,
        ):
            if launch.recompute:
                with connect(uri) as connection:
                    publish_outbox(connection, queue, launch.job)
            results = PostgresResults(
                pool,
                job=launch.job,
                fingerprint=fingerprint,
                worker=events.process,
                max_failures=settings.max_failures,
                load_s=load_s,
            )
            return Worker(
                queue=queue,
                results=results,
                predictor=predictor,
                settings=settings,
                shutdown=shutdown,
                report=Report(events),
            ).run()
    except TRANSIENT as error:
        return _gave_up(error, shutdown)


def _gave_up(error: Exception, shutdown: Shutdown) -> int:
    print(f"gave up waiting for the database or the queue: {type(error).__name__}", file=sys.stderr)
    return EXIT_PREEMPTED if shutdown.requested else EXIT_DEVICE_LOST


def _loaded(launch: Launch, uri: str, shutdown: Shutdown, report: Report) -> tuple[ProcessPredictor, str]:
    """No connection is held while the model loads: that may take longer than an idle one lives."""

    def asked(question: Callable[[Connection], _T]) -> _T:
        def ask() -> _T:
            with connect(uri) as connection:
                return question(connection)

        return retried(ask, give_up=lambda: shutdown.requested, tell=report.trouble)

    spec = replace(launch.predictor, pinned=asked(lambda connection: _pinned(connection, launch)))
    predictor = ProcessPredictor(spec, timeout_s=launch.settings.predict_timeout_s)
    # Loaded first: a model that does not fit must not become the job's configuration.
    predictor.load()
    configuration = predictor.configuration
    return predictor, asked(lambda c: jobs.pin(c, launch.job, configuration, recompute=launch.recompute))


def _pinned(connection: Connection, launch: Launch) -> dict[str, object]:
    schema.require_current(connection)
    jobs.require(connection, launch.job)
    return {} if launch.recompute else jobs.pinned_configuration(connection, launch.job)
