"""One loaded model: its process, its queue, and the task that empties it.

Guarantees: a request is answered by this model alone, once; what ends the predicting process, or makes it raise, is
found by halving and costs its neighbours a second prediction, not their answer.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.inference.errors import ItemFault, PredictorBroken, ProcessDied, Refused
from holdfast.inference.predictor.proxy import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server.batcher import Batcher, Ticket
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.settings import ServerSettings
from holdfast.inference.values import Value
from holdfast.runtime import logs

Values = list[Value]
_PREDICT_TIMEOUT_S = 30.0
"""A batch that takes longer is ended, and tried again in halves."""
_WARM_UP = b"warm-up"
"""A body that is predicted before the server is ready."""
R = TypeVar("R")


@dataclass(kw_only=True, eq=False)
class Request(Ticket):
    bodies: Sequence[bytes]
    answer: "asyncio.Future[Values]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Lane:
    def __init__(self, spec: PredictorSpec, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._predictor = ProcessPredictor(spec, timeout_s=_PREDICT_TIMEOUT_S, stopping=lambda: self._closed)
        # A thread of its own that lasts as long as the lane: the kernel ends the child with the thread that made it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predictor")
        self.batcher = Batcher[Request](settings.limits)
        self._wake = asyncio.Event()
        self._closed = False
        self._retired = False
        self._held = 0
        self._load_s = 0.0
        self.restarting = False
        """The predicting process died, and its model is loaded again."""

    @property
    def configuration(self) -> Mapping[str, object]:
        return self._predictor.configuration

    @property
    def predictor_pid(self) -> int | None:
        return self._predictor.pid

    async def load(self) -> None:
        """InputError, LoaderFailed or PredictorBroken as the predictor raises them; then the least and the largest batch, which also
        show what a batch takes."""
        began = time.monotonic()
        await self._in_thread(self._predictor.load)
        self._load_s = time.monotonic() - began
        try:
            for items in (1, self._settings.limits.batch_items):
                await self._in_thread(self._predictor.predict, [_WARM_UP] * items)
                self.batcher.timing.observe(items, self._predictor.seconds)
        except ItemFault:
            return  # a model may refuse this body: it answers, which is enough
        except ProcessDied as died:
            raise PredictorBroken(f"{died}, at the warm-up batch") from died

    def refusal(self, request: Ticket, now: float) -> Refused | None:
        found = self.batcher.refusal(request, now)
        if found is None:
            return None
        if self.restarting:
            return Refused(503, "the model is being reloaded", retry_after_s=found.retry_after_s, reason="restarting")
        return Refused(429, _SENTENCES[found.reason], retry_after_s=found.retry_after_s, reason=found.reason)

    def add(self, request: Request) -> None:
        self.batcher.add(request)
        self._count()
        self._wake.set()

    def discard(self, request: Request) -> None:
        self.batcher.discard(request)
        self._count()

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Whoever asks for one piece after the other: a retired model answers the last of them too."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._wake.set()

    def retire(self) -> None:
        """Answer what waits, then end."""
        self._retired = True
        self._wake.set()

    async def run(self) -> None:
        """Until retired and empty. PredictorBroken when the device or the model is lost; nothing waits any more then."""
        try:
            while not (self._retired and not self.batcher.waiting and not self._held):
                await self._next()
        except PredictorBroken:
            self._refuse_all()
            raise
        finally:
            self.close()

    async def _next(self) -> None:
        now = time.monotonic()
        for request in self.batcher.late(now):
            request.fail(Refused(504, "the answer would miss the deadline", reason="late"))
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
            values = await self._in_thread(self._predictor.predict, bodies)
        except ProcessDied as died:
            self._note_death(died)
            # Alone with a process that died it may still be innocent: the kernel, or a person, ended it.
            if len(batch) == 1 and again:
                batch[0].fail(Refused(500, f"this request crashes the model: {died}"))
            else:
                await self._halves(batch, again=len(batch) == 1)
        except ItemFault as fault:
            if len(batch) == 1:
                batch[0].fail(Refused(422, f"the model rejects this input: {fault.error_class}: {str(fault)[:300]}"))
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
        self.restarting = False
        self.batcher.timing.observe(len(values), self._predictor.seconds)
        self._metrics.batch_items.observe(len(values))
        self._metrics.predict_seconds.observe(self._predictor.seconds)
        first = 0
        for request in batch:
            if not request.answer.done():
                request.answer.set_result(values[first : first + request.items])
            first += request.items

    def _note_death(self, died: ProcessDied) -> None:
        self._metrics.predictor_deaths.inc()
        logs.warning("predictor", str(died))
        self.restarting = True
        # Whoever comes now waits for the model, and is refused when it cannot.
        self.batcher.free_at_s = time.monotonic() + self._load_s

    def _refuse_all(self) -> None:
        while waiting := self.batcher.take(time.monotonic()):
            for request in waiting:
                request.fail(_lost())

    def close(self) -> None:
        """End the process, whatever it does; its thread then finds it gone."""
        self._closed = True
        if pid := self._predictor.pid:
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
    "bytes": "the bodies that wait are too large together",
    "deadline": "the answer would miss the deadline",
}


def _lost() -> Refused:
    return Refused(503, "the model has crashed; this server exits", retry_after_s=1.0, reason="leaving")
