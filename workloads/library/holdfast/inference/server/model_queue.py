"""The model of a server: its process, its queue, and the task that answers the queue.

Guarantees: a request is answered once. A request that makes the predictor raise is found by halving
the batch. One that ends the predicting process, or hangs it, is found in a second process, which
computes the requests of that batch one by one. So its neighbors are still answered.
"""

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import NoReturn, TypeVar

from holdfast.inference.errors import ItemFault, PredictorBroken, ProcessDied, Refused
from holdfast.inference.predictor.pipe_protocol import Link
from holdfast.inference.predictor.predictor_client import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server import warm_up
from holdfast.inference.server.batcher import SPARE, Batcher, Ticket
from holdfast.inference.server.examiner import Examiner, make_rejection
from holdfast.inference.server.free_memory import has_room_for_copy
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.overdue import (
    LEAST_OVERDUE_S,
    LOOK_S,
    find_overdue_s,
    release_in_turn,
    wait_running,
)
from holdfast.inference.server.rejections import Rejections, Verdict
from holdfast.inference.server.request_body import DISCONNECTED
from holdfast.inference.server.requests import Request, Values
from holdfast.inference.server.settings import ServerSettings
from holdfast.inference.values import Value
from holdfast.runtime import logs
from holdfast.vocabulary.serving import TRIES

_LOOP_SHARE = 1 / 3
"""The share of the timeout for which the event loop waits; the thread waits for the rest.

After a pause of the machine longer than the timeout, the model still has the thread's share.
"""
_TEXTS: Mapping[str, object] = {
    "name": "text",
    "datatype": "BYTES",
    "shape": [-1],
}
R = TypeVar("R")


class ModelQueue:
    def __init__(self, spec: PredictorSpec, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._predictor = ProcessPredictor(
            spec, timeout_s=warm_up.PREDICT_TIMEOUT_S, stopping=lambda: self._closed
        )
        # One thread that lives as long as this queue: the kernel ends the child with the thread
        # that started it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predictor")
        self.batcher = Batcher[Request](settings.batch_items, settings.queue_requests)
        self.rejections = Rejections()
        self._examiner = Examiner(
            self.rejections,
            metrics,
            most_s=max(LEAST_OVERDUE_S, settings.request_s / TRIES),
            stopping=lambda: self._closed,
        )
        self._unexamined = deque[Request]()
        """Suspected requests for which no second process could be loaded."""
        self._wake = asyncio.Event()
        self._closed = False
        self.loaded = False
        self.commit = ""
        """The version in responses: run, step and attempt of a commit, or a digest.

        The digest is that of the configuration, for a model without a commit.
        """
        self._load_s = 0.0
        self.sample: Value | None = None
        """A value of this model; None if it rejected the warm-up."""
        self.hindered = ""
        """The reason why no batch ends soon, `overdue` or `restarting`; empty if there is none."""

    async def load(self) -> None:
        """Loads the model and predicts a smallest and a largest batch, to learn their times.

        Raises the predictor's InputError, LoaderFailed or PredictorBroken.
        """
        start = time.monotonic()
        await self._in_thread(self._predictor.load)
        self._load_s = time.monotonic() - start
        self.commit = _name_commit(self._predictor.configuration)
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
        body = warm_up.make_body(self._predictor)
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

    def refusal(self, request: Ticket, now: float, tries: int = 0) -> Refused | None:
        """Returns the error of a request that cannot be accepted, or None."""
        refusal = self.batcher.refusal(request, now)
        if self.hindered and (refusal or now >= self.batcher.free_at_s):
            if self._may_wait_for_reload(tries):
                return None
            wait_s = refusal[1] if refusal else 1.0
            return _refuse(503, self.hindered, wait_s)
        if refusal is None:
            return None
        reason, wait_s = refusal
        return _refuse(429, reason, wait_s)

    def _may_wait_for_reload(self, tries: int) -> bool:
        """Returns whether a request waits here although the reload may take too long for it.

        If another server refused it too, all of them may be reloading, and the first that has
        reloaded answers: this one, or the one that the proxy asks after this try.
        """
        is_full = self.batcher.waiting >= self._settings.queue_requests
        return self.hindered == "restarting" and tries > 1 and not is_full

    def check(self, digest: str) -> Refused | None:
        """Returns the error of a request that ended the model, or is examined for it, or None."""
        verdict = self.rejections.find(digest, time.monotonic())
        if verdict is Verdict.REJECTED:
            return make_rejection()
        if verdict is Verdict.SUSPECTED:
            return _refuse(503, verdict.value, max(1.0, self._load_s))
        return None

    def add(self, request: Request) -> None:
        self.batcher.add(request)
        self._wake.set()

    def discard(self, request: Request) -> bool:
        """Removes a request; returns False if it is in a batch already."""
        return self.batcher.discard(request)

    def expire(self, request: Request) -> None:
        """Fails a request at its deadline."""
        is_waiting = self.discard(request)
        request.fail(request.make_late(computing=not is_waiting))

    def abandon(self, request: Request) -> None:
        """Fails a request whose client has disconnected."""
        self.discard(request)
        request.fail(Refused(DISCONNECTED, "the client disconnected"))

    async def run(self) -> NoReturn:
        """Answers requests until it is cancelled.

        Raises PredictorBroken if the device or the model is lost, after failing all requests.
        """
        try:
            while True:
                await self._run_next()
        except PredictorBroken:
            self.loaded = False
            _fail_lost(self._unexamined)
            while requests := self.batcher.take(time.monotonic()):
                _fail_lost(requests)
            raise
        finally:
            self.close()

    async def _run_next(self) -> None:
        now = time.monotonic()
        for request in self.batcher.pop_late(now):
            request.fail(request.make_late())
        if self._unexamined:
            await self._examine_here(self._unexamined.popleft())
            return
        if self.batcher.waiting:
            await self._compute(self.batcher.take(now), now)
            return
        await self._wake.wait()
        self._wake.clear()

    async def _compute(self, requests: list[Request], now: float) -> None:
        batch = [request for request in requests if not self._fail_rejected(request)]
        if not batch:
            return
        for request in batch:
            self._metrics.queue_seconds.observe(now - request.arrived_s)
        self.batcher.begin(batch, now)
        try:
            await self._predict(batch)
        except PredictorBroken:
            _fail_lost(batch)
            raise
        finally:
            self.batcher.end()

    def _fail_rejected(self, request: Request) -> bool:
        """Fails a request if a copy of it ended the model while this one waited."""
        refusal = self.check(request.digest)
        if refusal is not None:
            request.fail(refusal)
        return refusal is not None

    async def _predict(self, batch: list[Request]) -> None:
        bodies = _join_bodies(batch)
        try:
            async with self._watch(batch, len(bodies)):
                values = await self._compute_values(bodies)
        except ProcessDied as error:
            await self._recover(batch, error)
        except ItemFault as error:
            if len(batch) == 1:
                self.rejections.note_answer(batch[0].digest)
                batch[0].fail(error)
            else:
                await self._predict_halves(batch)
        else:
            self._answer(batch, values)

    async def _compute_values(self, bodies: list[bytes]) -> Values:
        """Predicts without a thread if nothing in it can block the loop."""
        # Decision: infra/decisions/0203.
        start = time.monotonic()
        link = self._predictor.send(bodies)
        if link is None:
            return await self._in_thread(self._predictor.predict, bodies)
        most_s = self._predictor.timeout_s * _LOOP_SHARE
        await wait_for_reply(link, most_s)
        if link.has_small_reply:
            return self._predictor.predict(bodies)
        waited_s = min(time.monotonic() - start, most_s)
        return await self._in_thread(self._predictor.predict, bodies, waited_s)

    async def _predict_halves(self, batch: list[Request]) -> None:
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            open_requests = [request for request in half if request.is_open]
            if open_requests:
                await self._predict(open_requests)

    async def _recover(self, batch: list[Request], error: ProcessDied) -> None:
        """Loads the model again; only then a second process examines the batch."""
        answered, suspects = self._split(batch)
        now = time.monotonic()
        for request in suspects:
            request.suspected_s = now
            self.rejections.suspect(request.digest)
        self._return_to_proxy(suspects)
        await self._reload(error)
        self._examine(suspects)
        open_requests = [request for request in answered if request.is_open]
        if open_requests:
            await self._predict(open_requests)

    def _split(self, batch: list[Request]) -> tuple[list[Request], list[Request]]:
        """Returns the requests that were answered before, and the suspects."""
        answered: list[Request] = []
        suspects: list[Request] = []
        for request in batch:
            is_answered = self.rejections.is_answered(request.digest)
            group = answered if is_answered else suspects
            group.append(request)
        # If the process dies again with them, they are suspected too. Not before this point: a
        # request may be in the batch several times.
        for request in answered:
            self.rejections.forget_answer(request.digest)
        return answered, suspects

    def _return_to_proxy(self, suspects: list[Request]) -> None:
        """Fails those whose turn here comes too late, and which another server can still answer."""
        examined_at_s = time.monotonic() + 2 * self._load_s
        for request in suspects:
            examined_at_s += SPARE * self.batcher.timing.seconds(request.items)
            if request.tries == 1 and examined_at_s > request.deadline_s:
                request.fail(request.make_late(computing=True))

    def _examine(self, suspects: list[Request]) -> None:
        pid = self._predictor.pid
        if not suspects:
            return
        if self._examiner.pid is None and not (pid and has_room_for_copy(pid)):
            logs.warning("predictor", "no memory for a second process: suspects are examined here")
            self._unexamined.extend(suspects)
        else:
            self._examiner.submit(suspects, self._predictor.spec, self._accept_unexamined)

    def _accept_unexamined(self, suspects: Sequence[Request]) -> None:
        self._unexamined.extend(suspects)
        self._wake.set()

    async def _examine_here(self, request: Request) -> None:
        """Computes a suspected request in the process that answers all others."""

        async def predict(bodies: Sequence[bytes]) -> Values:
            async with self._watch([request], len(bodies)):
                return await self._in_thread(self._predictor.predict, list(bodies))

        if not await self._examiner.examine(request, predict):
            await self._reload(ProcessDied("a suspected request ended the predicting process"))

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
            self.rejections.note_answer(request.digest)
            request.resolve(values[first : first + request.items])
            first += request.items

    def _overdue_s(self, items: int) -> float:
        expected_s = self.batcher.timing.seconds(items)
        return find_overdue_s(expected_s, self._settings.request_s)

    @contextlib.asynccontextmanager
    async def _watch(self, batch: Sequence[Request], items: int) -> AsyncGenerator[None]:
        """Makes the server not ready while a batch is overdue, and ends it if no client waits."""
        tasks: list[asyncio.Task[None]] = []

        def start_task() -> None:
            tasks.append(asyncio.create_task(self._handle_overdue(batch, items)))

        # Most batches end before the first look, and need no task.
        timer = asyncio.get_running_loop().call_later(LOOK_S, start_task)
        try:
            yield
        finally:
            timer.cancel()
            for task in tasks:
                task.cancel()
            self.hindered = ""

    async def _handle_overdue(self, batch: Sequence[Request], items: int) -> None:
        limit_s = self._overdue_s(items)
        await wait_running(limit_s - LOOK_S)
        self.hindered = "overdue"
        logs.warning(
            "predictor",
            f"a batch of {items} is overdue: no answer in {limit_s:g} s; not ready",
        )
        for request in self.batcher.pop_where(lambda request: request.tries > 0):
            request.fail(request.make_late())
        timers = release_in_turn(batch)
        try:
            await asyncio.wait([request.answer for request in batch])
        finally:
            for timer in timers:
                timer.cancel()
        logs.warning("predictor", f"no client waits for the batch of {items}: its process is ended")
        self._predictor.kill()

    async def _reload(self, error: ProcessDied) -> None:
        """Reloads at once, not at the next request: a server that is not ready gets none."""
        self._metrics.predictor_deaths.inc()
        logs.warning("predictor", str(error))
        self.hindered = "restarting"
        # A new request waits for the model, and is refused if its deadline is earlier.
        self.batcher.free_at_s = time.monotonic() + self._load_s
        try:
            await self._in_thread(warm_up.load_again, self._predictor)
            self.commit = _name_commit(self._predictor.configuration)
        finally:
            self.hindered = ""

    def close(self) -> None:
        """Kills the processes, even during a prediction; their threads then end."""
        self._closed = True
        self._predictor.kill()
        self._examiner.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def update_metrics(self) -> None:
        """Sets the gauges, which nothing reads between two scrapes."""
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


async def wait_for_reply(link: Link, timeout_s: float) -> None:
    """Waits until the next reply has arrived, or cannot arrive, or has not arrived in time."""
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()

    def look() -> None:
        if link.pull() and not arrived.done():
            arrived.set_result(None)

    loop.add_reader(link.fileno(), look)
    try:
        async with asyncio.timeout(timeout_s):
            await arrived
    except TimeoutError:
        return
    finally:
        loop.remove_reader(link.fileno())


_SENTENCES = {
    "queue": "too many requests wait",
    "deadline": "the answer would miss the deadline",
    "overdue": "the model does not answer",
    "restarting": "the model is being reloaded",
    "suspected": "the model ended at this request, which is examined",
}


def _name_commit(configuration: Mapping[str, object]) -> str:
    if {"run", "step", "attempt"} <= configuration.keys():
        run = configuration["run"]
        step = configuration["step"]
        return f"{run}/step-{step}/{configuration['attempt']}"
    text = json.dumps(configuration, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:12]


def _refuse(status: int, reason: str, wait_s: float) -> Refused:
    return Refused(
        status,
        _SENTENCES[reason],
        retry_after_s=wait_s,
        reason=reason,
    )


def _join_bodies(batch: Sequence[Request]) -> list[bytes]:
    bodies: list[bytes] = []
    for request in batch:
        bodies.extend(request.bodies)
    return bodies


def _fail_lost(requests: Iterable[Request]) -> None:
    for request in requests:
        error = Refused(
            503,
            "the model has crashed; this server exits",
            retry_after_s=1.0,
            reason="leaving",
        )
        request.fail(error)
