"""Tests of the routes without a process."""

import asyncio
import json
from typing import Any, cast

import pytest

from holdfast.inference.server.app import App
from holdfast.inference.server.drain import Drain
from holdfast.inference.server.http_protocol import STARTED_AT
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.settings import ServerSettings
from holdfast.support.errors import InputError
from workloads.library.tests.inference.server.serving import INFER


@pytest.mark.parametrize("name", ["", "org/model"])
def test_a_model_without_a_name_for_urls_is_refused(name: str) -> None:
    """Its server would be ready, and no request could name the model."""
    with pytest.raises(InputError, match="no name in URLs") as error:
        ServerSettings(model=name)
    assert "--name" in error.value.fix


def test_a_bug_is_answered_and_raised_for_the_log() -> None:
    settings = ServerSettings()
    drain = Drain(budget=settings.budget, longest_request_s=settings.request_s)
    no_model = cast("Any", None)
    app = App(settings, drain, no_model, Metrics()).asgi()
    scope = {
        "type": "http",
        "method": "POST",
        "path": INFER,
        "headers": [],
        "state": {STARTED_AT: 0.0},
    }
    messages: list[Any] = []

    async def receive() -> Any:
        pytest.fail("the body of such a request is not read")

    async def send(message: Any) -> None:
        messages.append(message)

    with pytest.raises(AttributeError):
        asyncio.run(app(scope, receive, send))
    start, body = messages
    assert start["status"] == 500
    assert json.loads(body["body"]) == {"error": "internal error"}
