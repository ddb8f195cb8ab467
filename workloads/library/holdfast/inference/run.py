"""The composition of a batch worker, its queue and its store from the commands' options."""

import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.inference.errors import LoaderFailed, PredictorBroken, redact
from holdfast.inference.predictor.predictor_client import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.queue.postgres import PostgresQueue
from holdfast.inference.queue.protocol import Queue
from holdfast.inference.results import jobs, schema
from holdfast.inference.results.connect import TRANSIENT, connect, database_uri, open_pool
from holdfast.inference.results.postgres import PostgresResults
from holdfast.inference.worker.batch_worker import Worker
from holdfast.inference.worker.micro_batch import Parts
from holdfast.inference.worker.settings import LONGEST_PREDICTION_S, WorkerSettings
from holdfast.inference.worker.telemetry import WorkerTelemetry
from holdfast.runtime import logs
from holdfast.runtime.events import EventLog
from holdfast.runtime.shutdown import Shutdown, of_process
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.exit_codes import EXIT_BUG, EXIT_PREEMPTED, EXIT_RETRY
from holdfast.vocabulary.telemetry import KIND_BATCH


@dataclass(frozen=True, slots=True)
class PubSubOptions:
    """The topic and subscription on Pub/Sub; both empty for the queue in PostgreSQL."""

    topic: str
    subscription: str

    def __post_init__(self) -> None:
        if bool(self.topic) != bool(self.subscription):
            raise InputError(
                "--topic and --subscription must be given together",
                got=(
                    f"topic {self.topic or '(none)'}, subscription {self.subscription or '(none)'}"
                ),
                allowed="both, or neither for the queue in PostgreSQL",
                fix="give --topic and --subscription",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    job: str
    database: str
    predictor: PredictorSpec
    events: Path | None
    settings: WorkerSettings
    broker: PubSubOptions


@contextmanager
def open_publisher(
    database: str,
    job: str,
    broker: PubSubOptions,
) -> Generator[tuple[Connection, Queue]]:
    """Opens the database and the queue, for a command that queues items."""
    uri = database_uri(database)
    with connect(uri) as connection:
        schema.require_current(connection)
        with open_pool(uri) as pool, open_queue(pool, job, broker) as queue:
            yield connection, queue


@contextmanager
def open_queue(
    pool: ConnectionPool[Connection],
    job: str,
    broker: PubSubOptions,
    *,
    lease_s: float = WorkerSettings().lease_s,
    sleep: Callable[[float], bool | None] = time.sleep,
) -> Generator[Queue]:
    """Open the queue of a job. Raises Unjudged without credentials for Pub/Sub."""
    if not broker.topic:
        yield PostgresQueue(pool, job, lease_s=lease_s, sleep=sleep)
        return
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import pubsub_v1

    from holdfast.inference.queue.pubsub import PubSubQueue

    try:
        publisher = pubsub_v1.PublisherClient()
        subscriber = pubsub_v1.SubscriberClient()
    except DefaultCredentialsError as error:
        raise Unjudged(
            "no credentials for Pub/Sub",
            got=str(error),
            fix="gcloud auth application-default login, or run it in a pod of the job",
        ) from error
    try:
        yield PubSubQueue(
            publisher,
            subscriber,
            job=job,
            topic=broker.topic,
            subscription=broker.subscription,
            lease_s=lease_s,
        )
    finally:
        publisher.stop()
        publisher.transport.close()
        subscriber.close()


def run_worker(launch: Launch) -> int:
    """Runs a worker; returns the exit code of the process."""
    shutdown = of_process()
    # No item is leased before the model is loaded, so a notice ends the process at once.
    shutdown.nothing_at_stake = True
    logs.set_job(launch.job)
    with EventLog.open(launch.events, job=launch.job, kind=KIND_BATCH) as events:
        try:
            code = _load_and_work(launch, shutdown, events)
        except (PredictorBroken, LoaderFailed) as error:
            logs.error("load", f"the model cannot be loaded: {redact(str(error))}")
            return EXIT_RETRY if isinstance(error, PredictorBroken) else EXIT_BUG
        except TRANSIENT as error:
            logs.error(
                "retry", f"gave up waiting for the database or the queue: {type(error).__name__}"
            )
            code = EXIT_PREEMPTED if shutdown.requested else EXIT_RETRY
        events.emit("exit", code=code, step=0)
    return code


def _load_and_work(launch: Launch, shutdown: Shutdown, events: EventLog) -> int:
    start = time.monotonic()
    uri = database_uri(launch.database)
    telemetry = WorkerTelemetry(events)
    predictor, fingerprint, (total, backlog) = _load_predictor(
        launch,
        uri,
        shutdown,
        telemetry,
    )
    events.emit("start", rank=0, world_size=1, attempt=0, steps=total, items=backlog)
    load_s = time.monotonic() - start
    with closing(predictor), open_pool(uri) as pool:
        opened_queue = open_queue(
            pool,
            launch.job,
            launch.broker,
            lease_s=launch.settings.lease_s,
            sleep=shutdown.wait,
        )
        with opened_queue as queue:
            results = PostgresResults(
                pool,
                job=launch.job,
                fingerprint=fingerprint,
                worker=events.process,
                load_s=load_s,
            )
            shutdown.begin()
            parts = Parts(
                queue=queue,
                results=results,
                settings=launch.settings,
                shutdown=shutdown,
                telemetry=telemetry,
            )
            return Worker(parts, predictor).run()


def _load_predictor(
    launch: Launch,
    uri: str,
    shutdown: Shutdown,
    telemetry: WorkerTelemetry,
) -> tuple[ProcessPredictor, str, tuple[int, int]]:
    """Loads the model and pins the job's configuration.

    Returns the predictor, the fingerprint, and the numbers of items that the job has and has left.

    It holds no connection while the model loads, which may take longer than an idle connection
    lasts.
    """

    def load_pinned() -> dict[str, object]:
        with connect(uri) as connection:
            schema.require_current(connection)
            jobs.require(connection, launch.job)
            jobs.bind(connection, launch.broker.subscription, launch.job)
            return jobs.pinned_configuration(connection, launch.job)

    def pin() -> tuple[str, tuple[int, int]]:
        with connect(uri) as connection:
            fingerprint = jobs.pin(connection, launch.job, predictor.configuration)
            return fingerprint, jobs.count_items(connection, launch.job)

    retry = telemetry.retry(give_up=lambda: shutdown.requested)
    spec = replace(
        launch.predictor,
        pinned=retry(load_pinned),
    )
    timeout_s = launch.settings.predict_timeout_s or LONGEST_PREDICTION_S
    predictor = ProcessPredictor(
        spec,
        timeout_s=timeout_s,
        stopping=lambda: shutdown.requested,
    )
    # Load before pinning: a model that does not fit must not become the job's configuration.
    predictor.load()
    return predictor, *retry(pin)
