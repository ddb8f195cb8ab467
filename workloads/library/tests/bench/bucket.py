"""A bucket of benches: an emulator behind a proxy that limits each stream."""

import os
import subprocess
import sys
from collections.abc import Iterator
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
    """Variables by which a client finds an emulated one, and the file that counts the bytes that it
    gives. `options` and `variables`: of the emulator.
    """
    (straight, limited), passed = free_ports(2), folder / "passed"
    passed.write_text("0")
    shaped = [str(each) for each in (limited, straight, STREAM_MB_PER_S, passed)]
    commands = [
        [
            build(TOOLS["gcsemulator"]),
            "-host",
            "127.0.0.1",
            "-port",
            str(straight),
            *options,
        ],
        [
            sys.executable,
            "-m",
            "workloads.library.tests.bench.shaped",
            *shaped,
        ],
    ]
    environment = os.environ | variables
    quiet = subprocess.DEVNULL
    servers = [
        subprocess.Popen(
            each,
            cwd=ROOT,
            env=environment,
            stdout=quiet,
            stderr=quiet,
        )
        for each in commands
    ]
    address = f"http://127.0.0.1:{limited}"
    try:
        client = gcs.Client(
            project="p",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": address},
        )
        until(lambda: _made(client, name), "the bucket", pause_s=0.2)
        yield {"STORAGE_EMULATOR_HOST": address}, passed
    finally:
        for server in servers:
            server.kill()
            server.wait()


def _made(client: gcs.Client, name: str) -> bool:
    try:
        client.create_bucket(name, timeout=2.0, retry=None)
    except OSError:  # not up yet
        return False
    return True
