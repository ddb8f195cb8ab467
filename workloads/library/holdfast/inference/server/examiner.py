"""A second predicting process, in which suspected requests are computed one by one.

The first one answers all other requests meanwhile. The second one takes the memory of the model
again, so it lives only while requests are examined.
"""

# Decision: infra/decisions/0156.

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.inference.errors import ItemFault, PredictorBroken, ProcessDied, Refused
from holdfast.inference.predictor.predictor_client import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server import warm_up
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.rejections import Rejections, Verdict
from holdfast.inference.server.requests import Request, Values
from holdfast.runtime import logs

SHARED_S = 1.5
"""The time in which the proxies' watchers tell all servers of a suspected request."""
_ANSWER_S = 0.1
_MOST_BYTES = 64 * 1024 * 1024
"""The maximum size of all requests that wait; the server's own budget no longer counts them."""
R = TypeVar("R")
Predict = Callable[[Sequence[bytes]], Awaitable[Values]]


class Examiner:
    def __init__(
        self,
        rejections: Rejections,
        metrics: Metrics,
        *,
        most_s: float,
        stopping: Callable[[], bool],
    ) -> None:
        self._rejections = rejections
        self._metrics = metrics
        self._most_s = most_s
        """The maximum time of a request; longer ones count as hung."""
        self._stopping = stopping
        self._pending = deque[Request]()
        self._bytes = 0
        self._predictor: ProcessPredictor | None = None
        self._task: asyncio.Task[None] | None = None
        # The child ends with the thread that started it, so one thread does it all.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="examiner")

    @property
    def pid(self) -> int | None:
        return self._predictor.pid if self._predictor else None

    def submit(
        self,
        requests: Sequence[Request],
        spec: PredictorSpec,
        fall_back: Callable[[Sequence[Request]], object],
    ) -> None:
        """Examines requests in the background, including those for which no client waits.

        Calls `fall_back` with those that remain if the second process cannot be loaded.
        """
        for request in requests:
            self._add(request)
        if self._predictor is None:
            self._predictor = ProcessPredictor(
                spec, timeout_s=self._most_s, stopping=self._stopping
            )
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(self._predictor, fall_back))

    async def _run(
        self, predictor: ProcessPredictor, fall_back: Callable[[Sequence[Request]], object]
    ) -> None:
        async def predict(bodies: Sequence[bytes]) -> Values:
            return await self._in_thread(predictor.predict, bodies)

        while self._pending:
            try:
                await self._in_thread(warm_up.load_again, predictor)
                await self.examine(self._pending[0], predict)
            except (OSError, PredictorBroken) as error:
                if not self._stopping():
                    self._give_up(error, fall_back)
                return
            self._bytes -= _count_bytes(self._pending.popleft())
        self._end()

    def _add(self, request: Request) -> None:
        size = _count_bytes(request)
        if self._bytes + size > _MOST_BYTES:
            self._rejections.clear(request.digest)
            request.fail(Refused(503, "too many suspected requests wait", reason="suspected"))
            return
        self._pending.append(request)
        self._bytes += size

    def _give_up(self, error: Exception, fall_back: Callable[[Sequence[Request]], object]) -> None:
        logs.warning("predictor", f"no second process for suspected requests: {error}")
        remaining = list(self._pending)
        self._pending.clear()
        self._bytes = 0
        self._end()
        fall_back(remaining)

    async def examine(self, request: Request, predict: Predict) -> bool:
        """Computes a request alone and answers it; returns False if it ended the process."""
        digest = request.digest
        if self._rejections.find(digest, time.monotonic()) is Verdict.REJECTED:
            request.fail(make_rejection())  # a copy of it ended the process
            return True
        try:
            values = await predict(request.bodies)
        except ProcessDied as error:
            self._rejections.reject(digest, time.monotonic())
            self._metrics.rejected.inc()
            logs.warning("predictor", f"a request is rejected from now on: {error}")
            self._reject_once_shared(request)
            return False
        except ItemFault as error:
            self._rejections.note_answer(digest)
            request.fail(error)
        else:
            self._rejections.note_answer(digest)
            request.resolve(values)
        return True

    def _reject_once_shared(self, request: Request) -> None:
        """Answers once other servers know of the request, as its client may resend it at once."""
        at_s = min(request.suspected_s + SHARED_S, request.deadline_s - _ANSWER_S)
        delay_s = max(0.0, at_s - time.monotonic())
        asyncio.get_running_loop().call_later(delay_s, request.fail, make_rejection())

    def _end(self) -> None:
        """Ends the second process, which the next suspects load again."""
        predictor = self._predictor
        self._predictor = None
        if predictor is not None:
            self._thread.submit(predictor.close)

    def close(self) -> None:
        """Kills the second process, even during a prediction."""
        if self._predictor is not None:
            self._predictor.kill()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[..., R], *arguments: object) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, *arguments)


def make_rejection() -> Refused:
    return Refused(422, "this request ends or hangs the model", reason="rejected")


def _count_bytes(request: Request) -> int:
    return sum(map(len, request.bodies))
