"""The model of a server: its process, its queue, and the task that empties it.

Guarantees: a request is answered by this model alone, once; what ends the predicting process, or
makes it raise, is found by halving and costs its neighbours a second prediction, not their answer.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NoReturn, TypeVar

from holdfast.inference.errors import ItemFault, PredictorBroken, ProcessDied, Refused
from holdfast.inference.predictor.proxy import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server.batcher import Batcher, Ticket
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.settings import ServerSettings
from holdfast.inference.values import Value
from holdfast.runtime import logs
from holdfast.vocabulary.serving import TRIES

Values = list[Value]
_PREDICT_TIMEOUT_S = 30.0
"""A batch that takes longer is ended, and tried again in halves."""
_OVERDUE_S = 1.0
_OVERDUE_TIMES = 5.0
"""A batch is overdue after this many times what it should take, and after half a try of the proxy,
or a second, at least: a slow batch now and then is no hang, and a waiting request can still go to
another server in time.
"""
_WARM_UP = b"warm-up"
"""A body that is predicted before the server is ready."""
R = TypeVar("R")


@dataclass(kw_only=True, eq=False)
class Request(Ticket):
    bodies: Sequence[bytes]
    tries: int = 0
    """As `Deadline.tries`."""
    answer: "asyncio.Future[Values]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def late(self, *, computing: bool = False) -> Refused:
        """503 where a proxy has time for another server. What hung two servers may be what hangs
        them: no third.
        """
        again = self.tries == 1 if computing else self.tries > 0
        return Refused(503 if again else 504, "the answer misses the deadline", reason="late")


class Lane:
    def __init__(self, spec: PredictorSpec, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._predictor = ProcessPredictor(
            spec, timeout_s=_PREDICT_TIMEOUT_S, stopping=lambda: self._closed
        )
        # A thread of its own that lasts as long as the lane: the kernel ends the child with the
        # thread that made it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predictor")
        self.batcher = Batcher[Request](settings.batch_items, settings.queue_requests)
        self._wake = asyncio.Event()
        self._closed = False
        self.loaded = False
        self._load_s = 0.0
        self.sample: Value | None = None
        """A value of this model; None where it refuses the warm-up."""
        self.hindered = ""
        """Why no batch ends soon: one is `overdue`, or the process died and the model is
        `restarting`.
        """

    @property
    def commit(self) -> str:
        """What each answer names: run, step and attempt of a commit; of another model a digest of
        what decides a result.
        """
        found = self._predictor.configuration
        if {"run", "step", "attempt"} <= found.keys():
            return f"{found['run']}/step-{found['step']}/{found['attempt']}"
        return sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:12]

    async def load(self) -> None:
        """InputError, LoaderFailed or PredictorBroken as the predictor raises them; then the least
        and the largest batch, which also show what a batch takes.
        """
        began = time.monotonic()
        await self._in_thread(self._predictor.load)
        self._load_s = time.monotonic() - began
        await self._warm_up()
        self.loaded = True

    async def _warm_up(self) -> None:
        try:
            for items in (1, self._settings.batch_items):
                [self.sample, *_] = await self._in_thread(
                    self._predictor.predict, [_WARM_UP] * items
                )
                self.batcher.timing.observe(items, self._predictor.seconds)
        except ItemFault:
            return  # a model may refuse this body: it answers, which is enough
        except ProcessDied as died:
            raise PredictorBroken(f"{died}, at the warm-up batch") from died

    def refusal(self, request: Ticket, now: float) -> Refused | None:
        found = self.batcher.refusal(request, now)
        if self.hindered and (found or now >= self.batcher.free_at_s):
            wait_s = found[1] if found else 1.0
            return Refused(
                503,
                _SENTENCES[self.hindered],
                retry_after_s=wait_s,
                reason=self.hindered,
            )
        if found is None:
            return None
        reason, wait_s = found
        return Refused(
            429,
            _SENTENCES[reason],
            retry_after_s=wait_s,
            reason=reason,
        )

    def add(self, request: Request) -> None:
        self.batcher.add(request)
        self._count()
        self._wake.set()

    def discard(self, request: Request) -> bool:
        """False when it is computed already."""
        found = self.batcher.discard(request)
        self._count()
        return found

    async def run(self) -> NoReturn:
        """Until cancelled. PredictorBroken when the device or the model is lost; nothing waits any
        more then.
        """
        try:
            while True:
                await self._next()
        except PredictorBroken:
            self.loaded = False
            while waiting := self.batcher.take(time.monotonic()):
                for request in waiting:
                    request.fail(_lost())
            raise
        finally:
            self.close()

    async def _next(self) -> None:
        now = time.monotonic()
        for request in self.batcher.late(now):
            request.fail(request.late())
        if self.batcher.waiting:
            await self._compute(self.batcher.take(now), now)
            return
        await self._wake.wait()
        self._wake.clear()

    async def _compute(self, batch: list[Request], now: float) -> None:
        for request in batch:
            self._metrics.queue_seconds.observe(now - request.arrived_s)
        self.batcher.begin(batch, now)
        self._count()
        try:
            await self._predict(batch)
        except PredictorBroken:
            for request in batch:
                request.fail(_lost())
            raise
        finally:
            self.batcher.end()
            self._count()

    async def _predict(self, batch: list[Request], *, again: bool = False) -> None:
        bodies = [body for request in batch for body in request.bodies]
        try:
            with self._watched(len(bodies)):
                values = await self._in_thread(self._predictor.predict, bodies)
        except ProcessDied as died:
            await self._reload(died)
            # Alone with a process that died it may still be innocent: the kernel, or a person,
            # ended it.
            if len(batch) == 1 and again:
                batch[0].fail(Refused(500, f"this request crashes the model: {died}"))
            else:
                await self._halves(batch, again=len(batch) == 1)
        except ItemFault as fault:
            if len(batch) == 1:
                batch[0].fail(
                    Refused(
                        422,
                        f"the model rejects this input: {fault.error_class}: {str(fault)[:300]}",
                    )
                )
            else:
                await self._halves(batch, again=False)
        else:
            self._answer(batch, values)

    async def _halves(self, batch: list[Request], *, again: bool) -> None:
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            wanted = [request for request in half if not request.answer.done()]
            if wanted:
                await self._predict(wanted, again=again)

    def _answer(self, batch: list[Request], values: Values) -> None:
        # No more than makes it overdue: one that hung says little of the next, and a slower model
        # is learned in steps.
        self.batcher.timing.observe(
            len(values), min(self._predictor.seconds, self._overdue_s(len(values)))
        )
        self._metrics.batch_items.observe(len(values))
        self._metrics.predict_seconds.observe(self._predictor.seconds)
        first = 0
        for request in batch:
            if not request.answer.done():
                request.answer.set_result(values[first : first + request.items])
            first += request.items

    def _overdue_s(self, items: int) -> float:
        half_try_s = self._settings.request_s / TRIES / 2
        return max(_OVERDUE_S, half_try_s, _OVERDUE_TIMES * self.batcher.timing.seconds(items))

    @contextlib.contextmanager
    def _watched(self, items: int) -> Generator[None]:
        most_s = self._overdue_s(items)

        def overdue() -> None:
            self.hindered = "overdue"
            logs.warning(
                "predictor", f"a batch of {items} is overdue: no answer in {most_s:g} s; not ready"
            )

        timer = asyncio.get_running_loop().call_later(most_s, overdue)
        try:
            yield
        finally:
            timer.cancel()
            self.hindered = ""

    async def _reload(self, died: ProcessDied) -> None:
        """At once, and not with the next request: a server that is not ready gets none."""
        self._metrics.predictor_deaths.inc()
        logs.warning("predictor", str(died))
        self.hindered = "restarting"
        # A new request waits for the model, and is refused where its deadline is sooner.
        self.batcher.free_at_s = time.monotonic() + self._load_s
        try:
            await self._in_thread(self._predictor.load_again)
        finally:
            self.hindered = ""

    def close(self) -> None:
        """Kill the process, even in the middle of a prediction; its thread then ends."""
        self._closed = True
        pid = self._predictor.pid
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _count(self) -> None:
        self._metrics.running.set(self.batcher.running)
        self._metrics.waiting.set(self.batcher.waiting)
        self._metrics.inflight.set(self.batcher.running + self.batcher.waiting)

    async def _in_thread(self, work: Callable[..., R], *arguments: object) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


_SENTENCES = {
    "queue": "too many requests wait",
    "deadline": "the answer would miss the deadline",
    "overdue": "the model does not answer",
    "restarting": "the model is being reloaded",
}


def _lost() -> Refused:
    return Refused(
        503,
        "the model has crashed; this server exits",
        retry_after_s=1.0,
        reason="leaving",
    )
