"""The process of a router, from its first signal handler to its exit code."""

import asyncio
import contextlib
import math
import socket
import threading
import time

import uvicorn

from holdfast.inference.router.app import App
from holdfast.inference.router.discovery import Discovery
from holdfast.inference.router.engine_connection import SOCKET_BUFFER_BYTES
from holdfast.inference.router.metrics import Metrics
from holdfast.inference.router.servers import ServerPool
from holdfast.inference.router.settings import RouterSettings
from holdfast.inference.server.drain import Drain, Phase
from holdfast.inference.server.http_protocol import Connection
from holdfast.inference.server.http_server import (
    OTHER_FILES,
    HttpServer,
    forward_warnings,
    listen,
    raise_file_limit,
)
from holdfast.runtime import logs
from holdfast.runtime.shutdown import Shutdown, of_process
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.serving import OVER_BUDGET

_TICK_S = 0.05
_LAST_WORDS_S = 1.0
"""The time before the end of the window in which open streams get their error event."""


def serve(settings: RouterSettings) -> int:
    """Routes until a notice; returns the exit code."""
    logs.use_json()
    shutdown = of_process()
    # An alert matches this line.
    shutdown.last_words = lambda: logs.warning("drain", OVER_BUDGET)
    shutdown.leave_after(settings.window_s)
    # A stream has a connection to its client and one to its server.
    raise_file_limit(settings.connections + 2 * settings.streams + OTHER_FILES)
    with listen(settings.host, settings.port) as listener:
        # Connections inherit it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        port = listener.getsockname()[1]
        logs.info("router", f"listening on port {port}", port=port)
        return asyncio.run(_Process(settings, shutdown).run(listener))


class _Process:
    def __init__(self, settings: RouterSettings, shutdown: Shutdown) -> None:
        self._settings = settings
        self._shutdown = shutdown
        self._drain = Drain(budget=settings.budget, longest_request_s=settings.request_s)
        self._pool = ServerPool()
        self._discovery = Discovery(settings, self._pool)
        self._app = App(settings, self._drain, self._pool, Metrics())
        self._server = HttpServer(self._configure())

    def _configure(self) -> uvicorn.Config:
        forward_warnings()
        return uvicorn.Config(
            self._app,
            http=Connection.bind(self._drain, self._settings),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=math.ceil(self._settings.idle_s),
            loop="asyncio",
        )

    async def run(self, listener: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        threading.Thread(
            target=self._pass_notice,
            args=(loop,),
            name="notice",
            daemon=True,
        ).start()
        self._drain.finish_loading()
        following = asyncio.create_task(self._discovery.run())
        serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        leaving = asyncio.create_task(self._leave_in_order())
        # Without discovery a router is blind: a bug there ends the process.
        await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        await leaving
        await serving
        following.cancel()
        return EXIT_PREEMPTED

    def _pass_notice(self, loop: asyncio.AbstractEventLoop) -> None:
        self._shutdown.wait()
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(self._notice)

    def _notice(self) -> None:
        accept_s = self._settings.budget.accept_s
        logs.info("drain", f"{self._shutdown.reason}: not ready, accepting for {accept_s:g} s")
        self._drain.notice(time.monotonic())

    async def _leave_in_order(self) -> None:
        while self._drain.advance(time.monotonic()) not in (Phase.FINISHING, Phase.GONE):
            await asyncio.sleep(_TICK_S)
        # uvicorn closes the listener and idle connections, then waits for those with a request.
        self._server.should_exit = True
        has_ended = False
        while self._drain.advance(time.monotonic()) is not Phase.GONE:
            rest_s = self._shutdown.seconds_left(self._settings.window_s)
            if rest_s < _LAST_WORDS_S and not has_ended:
                has_ended = True
                self._app.end_streams()
            await asyncio.sleep(_TICK_S)
        logs.info("drain", "gone")
