"""The process of a server, from its first signal handler to its exit code."""

import asyncio
import contextlib
import math
import socket
import sys
import threading
import time

import uvicorn

from holdfast.inference.errors import LoaderFailed, PredictorBroken, redact
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server.app import App
from holdfast.inference.server.drain import Drain, Phase
from holdfast.inference.server.http_protocol import Connection
from holdfast.inference.server.http_server import (
    OTHER_FILES,
    HttpServer,
    forward_warnings,
    listen,
    raise_file_limit,
)
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.model_queue import ModelQueue
from holdfast.inference.server.settings import ServerSettings
from holdfast.runtime import logs
from holdfast.runtime.shutdown import Shutdown, of_process
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_BUG, EXIT_PREEMPTED, EXIT_RETRY
from holdfast.vocabulary.serving import OVER_BUDGET

_TICK_S = 0.05


def serve(spec: PredictorSpec, settings: ServerSettings) -> int:
    """Serves until a notice, or until the model is lost; returns the exit code."""
    logs.use_json()
    shutdown = of_process()  # before the model loads: a notice may come first
    # By default the interpreter lets a parsing thread delay the loop by 5 ms at a time.
    sys.setswitchinterval(0.0005)
    # An alert matches this line.
    shutdown.last_words = lambda: logs.warning("drain", OVER_BUDGET)
    shutdown.leave_after(settings.window_s)
    raise_file_limit(settings.connections + OTHER_FILES)
    with listen(settings.host, settings.port) as listener:
        port = listener.getsockname()[1]
        logs.info("serve", f"listening on port {port}", port=port)
        return asyncio.run(_Process(spec, settings, shutdown).run(listener))


class _Process:
    def __init__(self, spec: PredictorSpec, settings: ServerSettings, shutdown: Shutdown) -> None:
        self._settings = settings
        self._shutdown = shutdown
        self._drain = Drain(budget=settings.budget, longest_request_s=settings.request_s)
        self._metrics = Metrics()
        self._model = ModelQueue(spec, settings, self._metrics)
        self._code = EXIT_PREEMPTED
        app = App(
            settings,
            self._drain,
            self._model,
            self._metrics,
        )
        self._server = HttpServer(_configure(app, self._drain, settings))

    async def run(self, listener: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        threading.Thread(
            target=self._pass_notice,
            args=(loop,),
            name="notice",
            daemon=True,
        ).start()
        serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        computing = asyncio.create_task(self._compute())
        leaving = asyncio.create_task(self._leave_in_order())
        await leaving  # until the last response is sent, or at once if there was no request
        computing.cancel()
        self._model.close()
        await serving
        self._report()
        return self._code

    def _pass_notice(self, loop: asyncio.AbstractEventLoop) -> None:
        self._shutdown.wait()
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(self._notice)

    def _notice(self) -> None:
        logs.info(
            "drain",
            f"{self._shutdown.reason}: not ready, accepting for"
            f" {self._settings.budget.accept_s:g} s",
        )
        self._drain.notice(time.monotonic())
        self._metrics.draining.set(1)

    async def _compute(self) -> None:
        """Loads the model, then answers with it."""
        try:
            await self._model.load()
            self._drain.finish_loading()
            logs.info("serve", f"{self._settings.model} answers with {self._model.commit}")
            await self._model.run()
        except InputError as error:
            self._stop(EXIT_BAD_INPUT, error.lines())
        except LoaderFailed as error:
            self._stop(EXIT_BUG, f"load() has a bug: {error}")
        except PredictorBroken as error:
            self._stop(EXIT_RETRY, f"the model is lost: {redact(str(error))}")
        except Exception as error:  # noqa: BLE001  the task's top level: a server without a model must end
            self._stop(EXIT_BUG, f"the model is lost: {type(error).__name__}: {error}")

    def _stop(self, code: int, reason: str) -> None:
        """Stops a server without a model; requests that still arrive are answered with 503."""
        if self._shutdown.requested:
            return  # the predictor was killed with us, by the same end of the machine
        logs.error("serve", reason)
        self._code = code
        self._shutdown.request(reason.splitlines()[0])

    async def _leave_in_order(self) -> None:
        while self._drain.advance(time.monotonic()) not in (Phase.FINISHING, Phase.GONE):
            await asyncio.sleep(_TICK_S)
        # uvicorn closes the listener and idle connections, then waits for those with a request.
        self._server.should_exit = True
        while self._drain.advance(time.monotonic()) is not Phase.GONE:
            await asyncio.sleep(_TICK_S)

    def _report(self) -> None:
        if self._shutdown.received_at is None:
            return
        seconds = time.monotonic() - self._shutdown.received_at
        logs.info(
            "drain",
            f"gone after {seconds:.2f} s",
            seconds=round(seconds, 3),
            answered=self._metrics.count_responses(),
        )


def _configure(app: App, drain: Drain, settings: ServerSettings) -> uvicorn.Config:
    forward_warnings()
    return uvicorn.Config(
        app.asgi(),
        http=Connection.bind(drain, settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=math.ceil(settings.idle_s),
        loop="asyncio",
    )
