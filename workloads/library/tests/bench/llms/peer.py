"""vLLM's own router before the same engines, as it is installed: what becomes of its streams.

It chooses servers by prefix and load, probes them, and tries a request again at another one before
its response begins.
"""

import http.client
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast.drill.serving.fleet import free_port
from workloads.library.tests.bench.llms.runs import HOST, Figures, Load
from workloads.library.tests.bench.rival_home import CannotRun, home
from workloads.library.tests.inference.server.serving import Client, running
from workloads.library.tests.processes import kill_family, until

PEER = "vllm-router"
_START_S = 120.0


def run_peer(folder: Path, load: Load, *, streams: int, disruptions: int) -> Figures:
    """Runs the streams of the section `envoy` through the peer."""
    try:
        with load.engines(folder) as engines, running_peer(folder, engines.ports) as client:
            calm = load.run([client.port], load.streams_open)
            tally = load.run_with_disruptions([client.port], engines, streams, disruptions)
            figures = {
                **tally.count(),
                "disruptions": engines.disruptions,
                "cut_undisturbed": calm.count()["cut"],
            }
    except CannotRun as error:
        return {"peer_not_run": str(error)}
    return {"peer": figures}


@contextmanager
def running_peer(folder: Path, ports: list[int]) -> Generator[Client]:
    """Runs the peer before servers at `ports`. Raises CannotRun if it does not start."""
    program = home(PEER) / "bin" / PEER
    client = Client(free_port())
    command = [str(program), "--host", HOST, "--port", str(client.port)]
    command += ["--prometheus-port", str(free_port()), "--log-level", "error", "--worker-urls"]
    command += [f"http://{HOST}:{port}" for port in ports]
    log = folder / f"peer-{client.port}.log"
    with log.open("wb") as out, running(command, out, dict(os.environ)) as process:
        try:
            until(
                lambda: _is_ready(client),
                alive=lambda: process.poll() is None,
                within_s=_START_S,
                pause_s=0.1,
            )
        except (TimeoutError, ChildProcessError):
            raise CannotRun(log.read_text(errors="replace")[-1000:]) from None
        try:
            yield client
        finally:
            kill_family(process.pid)


def _is_ready(client: Client) -> bool:
    try:
        return client.request("GET", "/health").status == 200
    except (OSError, http.client.HTTPException):
        return False
