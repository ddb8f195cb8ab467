"""Composition: from the options of `batch run` and `batch enqueue` to a worker with its parts."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.contract.errors import InputError
from infra.contract.lifecycle import EXIT_PREEMPTED
from infra.contract.telemetry import KIND_BATCH
from workloads.inference import jobs, schema
from workloads.inference.connect import TRANSIENT, connect, database_uri, open_pool
from workloads.inference.enqueue import enqueue
from workloads.inference.predictors import ByteEntropy, Predictor
from workloads.inference.queue_postgres import PostgresQueue
from workloads.inference.results_postgres import PostgresResults
from workloads.inference.settings import WorkerSettings
from workloads.inference.sources import folder_items
from workloads.inference.steps import Report
from workloads.inference.worker import EXIT_DEVICE_LOST, Worker
from workloads.runtime.events import EventLog
from workloads.runtime.shutdown import of_process


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    job: str
    database: str
    predictor: str
    checkpoints: str
    run: str
    events: Path | None
    settings: WorkerSettings
    recompute: bool


def enqueue_source(database: str, job: str, source: Path, pattern: str) -> dict[str, int]:
    uri = database_uri(database)
    with connect(uri) as connection, open_pool(uri) as pool:
        schema.require_current(connection)
        queue = PostgresQueue(pool, job, lease_s=WorkerSettings().lease_s)
        done = enqueue(connection, queue, job, folder_items(job, source, pattern), _silent)
    return asdict(done)


def _silent(seen: int) -> None:
    """No progress bar."""


def run_worker(launch: Launch) -> int:
    """The exit code of the process."""
    shutdown = of_process()  # first, so that a notice during the slow start is heard
    uri = database_uri(launch.database)
    with EventLog.open(launch.events, job=launch.job, kind=KIND_BATCH) as events, open_pool(uri) as pool:
        with connect(uri) as connection:
            schema.require_current(connection)
            jobs.require(connection, launch.job)
            predictor = _predictor(launch, jobs.pinned_configuration(connection, launch.job))
            fingerprint = jobs.pin(connection, launch.job, predictor.configuration, recompute=launch.recompute)
        predictor.load()
        events.emit("start", rank=0, world_size=1, attempt=0)
        settings = launch.settings
        worker = Worker(
            queue=PostgresQueue(pool, launch.job, lease_s=settings.lease_s, sleep=shutdown.wait),
            results=PostgresResults(
                pool,
                job=launch.job,
                fingerprint=fingerprint,
                worker=f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(3)}",
                max_failures=settings.max_failures,
            ),
            predictor=predictor,
            settings=settings,
            shutdown=shutdown,
            report=Report(events),
        )
        try:
            code = worker.run()
        except TRANSIENT:
            code = EXIT_PREEMPTED if shutdown.requested else EXIT_DEVICE_LOST
        events.emit("exit", code=code, step=0)
    return code


def _predictor(launch: Launch, pinned: Mapping[str, Any]) -> Predictor:
    if launch.predictor == "entropy":
        return ByteEntropy()
    if launch.predictor != "gpt":
        raise InputError(
            "the predictor is unknown", got=launch.predictor, allowed="gpt, entropy", fix="give another --predictor"
        )
    if not launch.checkpoints:
        raise InputError(
            "the predictor needs a model",
            got="no --checkpoints",
            allowed="the URL that the training writes to",
            fix="give --checkpoints, or --predictor entropy",
        )
    from workloads.inference.gpt import GptLoss
    from workloads.inference.model_source import load_model

    return GptLoss(load_model(launch.checkpoints, launch.run, {} if launch.recompute else pinned))
