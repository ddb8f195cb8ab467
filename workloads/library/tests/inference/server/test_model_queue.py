"""Tests of the wait for a batch, with a predicting process that is played."""

import asyncio
import itertools
import math
import socket
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from holdfast.inference.predictor.pipe_protocol import Link
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server import model_queue
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.model_queue import ModelQueue
from holdfast.inference.server.requests import Request, Values
from holdfast.inference.server.settings import ServerSettings


class SilentPredictor:
    """Plays a predicting process from which no reply arrives while the event loop waits."""

    timeout_s = 30.0
    seconds = 0.1

    def __init__(self) -> None:
        end, child_end = socket.socketpair()
        child_end.close()
        self.link = Link(end)
        self.waited_s = math.nan

    def send(self, _: Sequence[bytes]) -> Link:
        return self.link

    def predict(self, bodies: Sequence[bytes], waited_s: float) -> Values:
        self.waited_s = waited_s
        return [{"score": 1.0} for _ in bodies]

    def kill(self) -> None:
        self.link.close()


async def compute() -> Values:
    queue = ModelQueue(PredictorSpec(name="played"), ServerSettings(), Metrics())
    request = Request(
        items=1,
        arrived_s=0.0,
        deadline_s=math.inf,
        bodies=[b"text"],
        digest="digest",
    )
    queue.add(request)
    running = asyncio.ensure_future(queue.run())
    await asyncio.wait([running, request.answer], return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    return request.answer.result()


def test_a_paused_machine_leaves_a_batch_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = SilentPredictor()
    jumping_clock = SimpleNamespace(monotonic=itertools.count(step=1000).__next__)
    monkeypatch.setattr(model_queue, "ProcessPredictor", lambda *_, **__: predictor)
    monkeypatch.setattr(model_queue, "time", jumping_clock)
    assert asyncio.run(compute()) == [{"score": 1.0}]
    assert predictor.waited_s <= predictor.timeout_s / 3
