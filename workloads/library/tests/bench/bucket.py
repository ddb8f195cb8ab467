"""An emulated bucket for benches, behind a proxy that limits each stream."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage as gcs

from tests.cluster.sim.processes import free_ports
from tests.tools.build import TOOLS, build
from workloads.library.tests.processes import until

ROOT = Path(__file__).parents[4]
# Published for one stream to a standard bucket: about 100 MB/s. A quarter of it keeps the proxy off
# the cores.
STREAM_MB_PER_S = 25.0


@contextmanager
def bucket(
    folder: Path, name: str, *options: str, **variables: str
) -> Iterator[tuple[dict[str, str], Path]]:
    """Runs an emulator, with its command line options and environment variables.

    Yields the variables by which a client finds it, and the file that counts the bytes it sends.
    """
    emulator_port, proxy_port = free_ports(2)
    passed = folder / "passed"
    passed.write_text("0")
    emulator = [
        build(TOOLS["gcsemulator"]),
        "-host",
        "127.0.0.1",
        "-port",
        str(emulator_port),
        *options,
    ]
    proxy = [
        sys.executable,
        "-m",
        "workloads.library.tests.bench.stream_proxy",
        str(proxy_port),
        str(emulator_port),
        str(STREAM_MB_PER_S),
        str(passed),
    ]
    environment = os.environ | variables
    servers = [_start(emulator, environment), _start(proxy, environment)]
    address = f"http://127.0.0.1:{proxy_port}"
    try:
        client = gcs.Client(
            project="p",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": address},
        )
        until(lambda: _create(client, name), "the bucket", pause_s=0.2)
        yield {"STORAGE_EMULATOR_HOST": address}, passed
    finally:
        for server in servers:
            server.kill()
            server.wait()


def _start(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _create(client: gcs.Client, name: str) -> bool:
    """Creates the bucket; returns False while the emulator does not answer yet."""
    try:
        client.create_bucket(name, timeout=2.0, retry=None)
    except OSError:
        return False
    return True
