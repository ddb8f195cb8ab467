"""The batch commands on this host, for workers that are real pods: database, queue, status."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.clients.api import Object
from tests.cluster.sim.runnable import ROOT

COMMAND = (sys.executable, "-m", "holdfast", "batch")
LIMIT_S = 240


@contextmanager
def database(folder: Path) -> Iterator[str]:
    """The URI of the embedded PostgreSQL, for this account."""
    command = [
        *COMMAND,
        "database",
        "--dir",
        str(folder),
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["uri"]
        finally:
            server.terminate()


def batch(*arguments: object) -> Object:
    command = [*COMMAND, *(str(argument) for argument in arguments), "--json"]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=LIMIT_S,
    )
    return json.loads(done.stdout)
