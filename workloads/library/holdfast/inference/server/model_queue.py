"""The model of a server: its process, its queue, and the task that answers the queue.

Guarantees: a request is answered once. A request that ends the predicting process, or makes it
raise, is found by halving the batch: its neighbours are predicted again and still answered.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NoReturn, TypeVar

from holdfast.inference.errors import ItemFault, PredictorBroken, ProcessDied, Refused
from holdfast.inference.predictor.predictor_client import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server import tensors
from holdfast.inference.server.batcher import Batcher, Ticket
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.settings import ServerSettings
from holdfast.inference.values import Value
from holdfast.runtime import logs
from holdfast.vocabulary.serving import TRIES

Values = list[Value]
_PREDICT_TIMEOUT_S = 30.0
"""The maximum time of a batch; after it the batch is tried again in halves."""
_OVERDUE_S = 1.0
_OVERDUE_TIMES = 5.0
"""The multiple of its expected time after which a batch is overdue.

It is overdue after half a try of the proxy, or a second, at the earliest: a slow batch is no hang,
and waiting requests can still go to another server in time.
"""
_WARM_UP = b"warm-up"
"""The body that is predicted before the server is ready, if the model describes no inputs."""
_TEXTS: Mapping[str, object] = {
    "name": "text",
    "datatype": "BYTES",
    "shape": [-1],
}
R = TypeVar("R")


@dataclass(kw_only=True, eq=False)
class Request(Ticket):
    bodies: Sequence[bytes]
    tries: int = 0
    """The same as `Deadline.tries`."""
    answer: "asyncio.Future[Values]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Its values, or else Refused, or ItemFault if the model raises an exception for it."""

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def make_late(self, *, computing: bool = False) -> Refused:
        """Makes the error of a late request: 503 lets the proxy retry elsewhere, 504 does not.

        A request that was being computed on two servers gets 504, as it may be what hangs them.
        """
        may_retry = self.tries == 1 if computing else self.tries > 0
        return Refused(503 if may_retry else 504, "the answer misses the deadline", reason="late")


class ModelQueue:
    def __init__(self, spec: PredictorSpec, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._predictor = ProcessPredictor(
            spec, timeout_s=_PREDICT_TIMEOUT_S, stopping=lambda: self._closed
        )
        # One thread that lives as long as this queue: the kernel ends the child with the thread
        # that started it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predictor")
        self.batcher = Batcher[Request](settings.batch_items, settings.queue_requests)
        self._wake = asyncio.Event()
        self._closed = False
        self.loaded = False
        self._load_s = 0.0
        self.sample: Value | None = None
        """A value of this model; None if it rejected the warm-up."""
        self.hindered = ""
        """The reason why no batch ends soon, `overdue` or `restarting`; empty if there is none."""

    @property
    def commit(self) -> str:
        """The version in responses: run, step and attempt of a commit, or a digest.

        The digest is that of the configuration, for a model without a commit.
        """
        configuration = self._predictor.configuration
        if {"run", "step", "attempt"} <= configuration.keys():
            run = configuration["run"]
            step = configuration["step"]
            return f"{run}/step-{step}/{configuration['attempt']}"
        text = json.dumps(configuration, sort_keys=True)
        return sha256(text.encode()).hexdigest()[:12]

    async def load(self) -> None:
        """Loads the model and predicts a smallest and a largest batch, to learn their times.

        Raises the predictor's InputError, LoaderFailed or PredictorBroken.
        """
        start = time.monotonic()
        await self._in_thread(self._predictor.load)
        self._load_s = time.monotonic() - start
        await self._warm_up()
        self.loaded = True

    def describe_inputs(self) -> list[Mapping[str, object]]:
        """Returns the metadata of the inputs.

        A model that does not describe them has one of texts if it accepted the text of the warm-up,
        and none if it rejected it.
        """
        if self._predictor.inputs:
            return list(self._predictor.inputs)
        return [_TEXTS] if self.sample is not None else []

    async def _warm_up(self) -> None:
        inputs = self._predictor.inputs
        body = tensors.make_sample(inputs) if inputs else _WARM_UP
        try:
            for items in (1, self._settings.batch_items):
                bodies = [body] * items
                values = await self._in_thread(self._predictor.predict, bodies)
                self.sample = values[0]
                self.batcher.timing.observe(items, self._predictor.seconds)
        except ItemFault:
            return  # a model may reject this body; it works all the same
        except ProcessDied as error:
            raise PredictorBroken(f"{error}, at the warm-up batch") from error

    def refusal(self, request: Ticket, now: float) -> Refused | None:
        """Returns the error of a request that cannot be accepted, or None."""
        refusal = self.batcher.refusal(request, now)
        if self.hindered and (refusal or now >= self.batcher.free_at_s):
            wait_s = refusal[1] if refusal else 1.0
            return _refuse(503, self.hindered, wait_s)
        if refusal is None:
            return None
        reason, wait_s = refusal
        return _refuse(429, reason, wait_s)

    def add(self, request: Request) -> None:
        self.batcher.add(request)
        self._update_metrics()
        self._wake.set()

    def discard(self, request: Request) -> bool:
        """Removes a request; returns False if it is in a batch already."""
        is_removed = self.batcher.discard(request)
        self._update_metrics()
        return is_removed

    async def run(self) -> NoReturn:
        """Answers requests until it is cancelled.

        Raises PredictorBroken if the device or the model is lost, after failing all requests.
        """
        try:
            while True:
                await self._run_next()
        except PredictorBroken:
            self.loaded = False
            while requests := self.batcher.take(time.monotonic()):
                _fail_lost(requests)
            raise
        finally:
            self.close()

    async def _run_next(self) -> None:
        now = time.monotonic()
        for request in self.batcher.pop_late(now):
            request.fail(request.make_late())
        if self.batcher.waiting:
            await self._compute(self.batcher.take(now), now)
            return
        await self._wake.wait()
        self._wake.clear()

    async def _compute(self, batch: list[Request], now: float) -> None:
        for request in batch:
            self._metrics.queue_seconds.observe(now - request.arrived_s)
        self.batcher.begin(batch, now)
        self._update_metrics()
        try:
            await self._predict(batch)
        except PredictorBroken:
            _fail_lost(batch)
            raise
        finally:
            self.batcher.end()
            self._update_metrics()

    async def _predict(self, batch: list[Request], *, is_retry: bool = False) -> None:
        bodies: list[bytes] = []
        for request in batch:
            bodies.extend(request.bodies)
        is_single = len(batch) == 1
        try:
            with self._watch(len(bodies)):
                values = await self._in_thread(self._predictor.predict, bodies)
        except ProcessDied as error:
            await self._reload(error)
            # A single request may still be innocent at first: the kernel, or a person, may have
            # ended the process.
            if is_single and is_retry:
                batch[0].fail(Refused(500, f"this request crashes the model: {error}"))
            else:
                await self._predict_halves(batch, is_retry=is_single)
        except ItemFault as error:
            if is_single:
                batch[0].fail(error)
            else:
                await self._predict_halves(batch, is_retry=False)
        else:
            self._answer(batch, values)

    async def _predict_halves(self, batch: list[Request], *, is_retry: bool) -> None:
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            open_requests = [request for request in half if not request.answer.done()]
            if open_requests:
                await self._predict(open_requests, is_retry=is_retry)

    def _answer(self, batch: list[Request], values: Values) -> None:
        items = len(values)
        # Capped at the overdue limit, so that one hung batch does not inflate the estimate; that of
        # a slower model grows in steps.
        seconds = min(self._predictor.seconds, self._overdue_s(items))
        self.batcher.timing.observe(items, seconds)
        self._metrics.batch_items.observe(items)
        self._metrics.predict_seconds.observe(self._predictor.seconds)
        first = 0
        for request in batch:
            if not request.answer.done():
                request.answer.set_result(values[first : first + request.items])
            first += request.items

    def _overdue_s(self, items: int) -> float:
        half_try_s = self._settings.request_s / TRIES / 2
        batch_s = self.batcher.timing.seconds(items)
        return max(_OVERDUE_S, half_try_s, _OVERDUE_TIMES * batch_s)

    @contextlib.contextmanager
    def _watch(self, items: int) -> Generator[None]:
        """Makes the server not ready while a batch is overdue."""
        limit_s = self._overdue_s(items)

        def hinder() -> None:
            self.hindered = "overdue"
            logs.warning(
                "predictor",
                f"a batch of {items} is overdue: no answer in {limit_s:g} s; not ready",
            )

        timer = asyncio.get_running_loop().call_later(limit_s, hinder)
        try:
            yield
        finally:
            timer.cancel()
            self.hindered = ""

    async def _reload(self, error: ProcessDied) -> None:
        """Reloads at once, not at the next request: a server that is not ready gets none."""
        self._metrics.predictor_deaths.inc()
        logs.warning("predictor", str(error))
        self.hindered = "restarting"
        # A new request waits for the model, and is refused if its deadline is earlier.
        self.batcher.free_at_s = time.monotonic() + self._load_s
        try:
            await self._in_thread(self._predictor.load_again)
        finally:
            self.hindered = ""

    def close(self) -> None:
        """Kills the process, even during a prediction; its thread then ends."""
        self._closed = True
        pid = self._predictor.pid
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _update_metrics(self) -> None:
        self._metrics.running.set(self.batcher.running)
        self._metrics.waiting.set(self.batcher.waiting)
        self._metrics.inflight.set(self.batcher.running + self.batcher.waiting)

    async def _in_thread(self, work: Callable[..., R], *arguments: object) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread,
            work,
            *arguments,
        )


_SENTENCES = {
    "queue": "too many requests wait",
    "deadline": "the answer would miss the deadline",
    "overdue": "the model does not answer",
    "restarting": "the model is being reloaded",
}


def _refuse(status: int, reason: str, wait_s: float) -> Refused:
    return Refused(
        status,
        _SENTENCES[reason],
        retry_after_s=wait_s,
        reason=reason,
    )


def _fail_lost(requests: Sequence[Request]) -> None:
    for request in requests:
        error = Refused(
            503,
            "the model has crashed; this server exits",
            retry_after_s=1.0,
            reason="leaving",
        )
        request.fail(error)
