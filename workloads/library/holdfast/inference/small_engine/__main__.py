"""`python -m holdfast.inference.small_engine`: serves the small model with vLLM's protocol.

SIGTERM makes it unready: new requests are refused, open ones have --shutdown-timeout, as in vLLM.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import threading
from pathlib import Path

import uvicorn

from holdfast.inference.server.http_server import (
    HttpServer,
    forward_warnings,
    listen,
    raise_file_limit,
)
from holdfast.inference.small_engine.app import App, EngineSettings
from holdfast.runtime import logs
from holdfast.runtime.shutdown import Shutdown, leave_now, of_process
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED

_TICK_S = 0.02
_FILES = 16_384


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.inference.small_engine", description=__doc__
    )
    defaults = EngineSettings()
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        help="port; 0 takes a free one",
    )
    parser.add_argument("--served-model-name", default=defaults.model)
    parser.add_argument(
        "--tokens-per-second",
        type=float,
        default=defaults.tokens_per_s,
        help="of each stream; 0: as fast as possible",
    )
    parser.add_argument(
        "--prefill",
        type=float,
        default=defaults.prefill_s,
        help="seconds to the first token",
    )
    parser.add_argument(
        "--pair-every",
        type=int,
        default=defaults.pair_every,
        help="every such event carries two tokens",
    )
    parser.add_argument("--max-num-seqs", type=int, default=defaults.running)
    parser.add_argument("--max-model-len", type=int, default=defaults.longest)
    parser.add_argument("--shutdown-timeout", type=float, default=0.0)
    arguments = parser.parse_args()
    settings = EngineSettings(
        model=arguments.served_model_name,
        tokens_per_s=arguments.tokens_per_second,
        prefill_s=arguments.prefill,
        pair_every=arguments.pair_every,
        running=arguments.max_num_seqs,
        longest=arguments.max_model_len,
    )
    logs.use_json()
    shutdown = of_process()
    _compile(settings.model)
    raise_file_limit(_FILES)
    with listen(arguments.host, arguments.port) as listener:
        port = listener.getsockname()[1]
        logs.info("engine", f"listening on port {port}", port=port)
        asyncio.run(_serve(App(settings), listener, shutdown, arguments.shutdown_timeout))
    leave_now(EXIT_PREEMPTED)


def _compile(model: str) -> None:
    """Simulates the compilers of vLLM: loads the kernels in their folder, or writes them there.

    Exits if the kernels are of another model, as vLLM may.
    """
    root = os.environ.get("VLLM_CACHE_ROOT")
    if not root:
        return
    path = Path(root) / "torch_compile_cache" / "kernels"
    if not path.exists():
        path.parent.mkdir(parents=True)
        path.write_text(model)
        logs.info("engine", "kernels compiled")
    elif path.read_text() == model:
        logs.info("engine", "kernels loaded")
    else:
        sys.exit("the kernels in the cache are of another model")


async def _serve(
    app: App,
    listener: socket.socket,
    shutdown: Shutdown,
    shutdown_timeout_s: float,
) -> None:
    loop = asyncio.get_running_loop()
    notice = asyncio.Event()

    def wait_for_notice() -> None:
        shutdown.wait()
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(notice.set)

    threading.Thread(
        target=wait_for_notice,
        name="notice",
        daemon=True,
    ).start()
    forward_warnings()
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        loop="asyncio",
    )
    server = HttpServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await notice.wait()
    app.is_draining = True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(shutdown_timeout_s):
            while not app.is_idle:
                await asyncio.sleep(_TICK_S)
    app.abort()
    server.should_exit = True
    server.force_exit = True
    await serving


if __name__ == "__main__":
    main()
