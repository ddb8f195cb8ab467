"""Tests that a request is forgotten with its answer, and not at the next garbage collection.

The budget of bytes counts it until then: bodies that live longer would take memory outside of it.
"""

import asyncio
import gc
import weakref
from collections.abc import Callable, Generator, MutableMapping
from typing import Any

import pytest

from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server.app import App
from holdfast.inference.server.drain import Drain
from holdfast.inference.server.http_protocol import CONNECTION, STARTED_AT
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.model_queue import ModelQueue
from holdfast.inference.server.requests import Request
from holdfast.inference.server.settings import ServerSettings
from workloads.library.tests.inference.server.serving import INFER, texts

Message = MutableMapping[str, Any]


@pytest.fixture
def collects_no_garbage() -> Generator[None]:
    gc.disable()
    yield
    gc.enable()


class LostConnection:
    """Plays the connection of a client that leaves once its request waits."""

    is_receiving = False

    def watch(self, on_loss: Callable[[], object] | None) -> None:
        if on_loss is not None:
            on_loss()


class Queue(ModelQueue):
    """Counts its requests, and knows those that still exist."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(PredictorSpec(name="played"), settings, Metrics())
        self.loaded = True
        self.existing = weakref.WeakSet[Request]()
        self.added = 0

    def add(self, request: Request) -> None:
        super().add(request)
        self.existing.add(request)
        self.added += 1


async def infer(queue: Queue, settings: ServerSettings, connection: object) -> list[Message]:
    drain = Drain(budget=settings.budget, longest_request_s=settings.request_s)
    drain.finish_loading()
    app = App(settings, drain, queue, Metrics()).asgi()
    now = asyncio.get_running_loop().time()
    scope = {
        "type": "http",
        "method": "POST",
        "path": INFER,
        "headers": [],
        "state": {STARTED_AT: now, CONNECTION: connection},
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": texts("text"), "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


@pytest.mark.usefixtures("collects_no_garbage")
def test_a_request_is_forgotten_when_its_client_leaves() -> None:
    settings = ServerSettings()
    queue = Queue(settings)
    sent = asyncio.run(infer(queue, settings, LostConnection()))
    assert sent[0]["status"] == 499
    assert queue.added == 1
    assert not queue.existing
