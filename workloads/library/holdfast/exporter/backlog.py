"""Reads the backlog of batch jobs from the view holdfast.job_scaling of the results database.

Runs in its own thread, so that a slow database never delays a pass. Guarantee: values older than
STALE_S are not shown. The series ends, so an outage does not look like an empty queue.

Pub/Sub's num_undelivered_messages would not do: it is minutes old, counts leased messages as
waiting, and is zero for items that were registered but never published. The view is the interface
to the batch code, which monitoring may not import.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from holdfast.controllers.controller_log import get_logger
from holdfast.controllers.sample import Sample, sample
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.environment import ENV_DATABASE

LOG = get_logger("read-backlog")
EVERY_S = 30.0
STALE_S = 120.0
QUERY = "SELECT job, backlog_items, oldest_seconds, replicas_wanted FROM holdfast.job_scaling"
# The timeout keeps slow reads from piling up.
OPTIONS = "-c statement_timeout=20000 -c default_transaction_read_only=on"


class Backlog(threading.Thread):
    def __init__(
        self,
        uri: str,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="backlog", daemon=True)
        try:
            import psycopg
        except ImportError as error:
            raise Unjudged(f"{ENV_DATABASE} is set, but psycopg is not installed") from error
        self._psycopg: Any = psycopg
        self._uri = uri
        self._every_s = every_s
        self._clock = clock
        self._closing = threading.Event()
        self._newest: tuple[float, tuple[Sample, ...]] = (0.0, ())

    def samples(self, now_s: float) -> tuple[Sample, ...]:
        read_s, samples = self._newest
        if now_s - read_s > STALE_S:
            return ()
        return samples

    def run(self) -> None:
        connection: Any = None
        while not self._closing.is_set():
            try:
                if connection is None:
                    connection = self._connect()
                rows = connection.execute(QUERY).fetchall()
                self._newest = (self._clock(), tuple(_samples(rows)))
            except self._psycopg.Error as error:
                # The text of an error may hold the address with its password.
                LOG.warning("results database: %s", type(error).__name__)
                if connection is not None:
                    with suppress(self._psycopg.Error):
                        connection.close()
                connection = None
            self._closing.wait(self._every_s)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._closing.set()

    def _connect(self) -> Any:
        return self._psycopg.connect(
            self._uri,
            autocommit=True,
            connect_timeout=5,
            options=OPTIONS,
        )


def _samples(rows: Iterable[tuple[str, int, float, int]]) -> Iterable[Sample]:
    for job, items, oldest_s, replicas in rows:
        yield sample("batch_backlog_items", items, job=job)
        yield sample("batch_oldest_seconds", oldest_s, job=job)
        yield sample("batch_replicas_wanted", replicas, job=job)
