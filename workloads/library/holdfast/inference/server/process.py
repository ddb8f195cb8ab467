"""The process of a server, from its first signal handler to its exit code."""

import asyncio
import contextlib
import logging
import math
import resource
import socket
import sys
import threading
import time
from collections.abc import Generator

import uvicorn

from holdfast.inference.errors import LoaderFailed, PredictorBroken, redact
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server.app import App
from holdfast.inference.server.drain import Drain, Phase
from holdfast.inference.server.http_protocol import Connection
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.model_queue import ModelQueue
from holdfast.inference.server.settings import ServerSettings
from holdfast.runtime import logs
from holdfast.runtime.shutdown import Shutdown, of_process
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_BUG, EXIT_PREEMPTED, EXIT_RETRY
from holdfast.vocabulary.serving import OVER_BUDGET

_TICK_S = 0.05
_BACKLOG = 2048
_OTHER_FILES = 256
"""The files that a server may have open in addition to its connections."""


def serve(spec: PredictorSpec, settings: ServerSettings) -> int:
    """Serves until a notice, or until the model is lost; returns the exit code."""
    logs.use_json()
    shutdown = of_process()  # before the model loads: a notice may come first
    # By default the interpreter lets a parsing thread delay the loop by 5 ms at a time.
    sys.setswitchinterval(0.0005)
    # An alert matches this line.
    shutdown.last_words = lambda: logs.warning("drain", OVER_BUDGET)
    shutdown.leave_after(settings.window_s)
    _raise_file_limit(settings.connections + _OTHER_FILES)
    with _listen(settings.host, settings.port) as listener:
        port = listener.getsockname()[1]
        logs.info("serve", f"listening on port {port}", port=port)
        return asyncio.run(_Process(spec, settings, shutdown).run(listener))


def _raise_file_limit(count: int) -> None:
    """Allows `count` open files if the system does: container runtimes begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        count = min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Captures none: `Shutdown` has them, and uvicorn's would stop listening at once."""
        yield


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
        self._server = _Server(_configure(app, self._drain, settings))

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
    _forward_warnings()
    return uvicorn.Config(
        app.asgi(),
        http=Connection.bind(drain, settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=math.ceil(settings.idle_s),
        loop="asyncio",
    )


class _ForwardingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error:
            logs.error("http", record.getMessage(), cause=error)
        else:
            logs.warning("http", record.getMessage())


def _forward_warnings() -> None:
    """Sends uvicorn's warnings to our log, so that standard output has one format."""
    logger = logging.getLogger("uvicorn.error")
    logger.handlers = [_ForwardingHandler(logging.WARNING)]
    logger.propagate = False


def _listen(host: str, port: int) -> socket.socket:
    """Binds the port before the model loads, so that probes are answered from the start."""
    try:
        return socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise InputError(
            "the address is not available",
            got=f"{host}:{port}: {error.strerror}",
            allowed="a free port of this machine",
            fix="use another --port, or stop the program that uses it",
        ) from None
