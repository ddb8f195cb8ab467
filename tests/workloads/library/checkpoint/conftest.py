"""The Cloud Storage emulator, and jobs that are killed."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from uuid import uuid4

import pytest

from tests.tools.build import TOOLS, build
from tests.workloads.library.checkpoint.jobs import Jobs


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the emulator ended"
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")


@pytest.fixture(scope="session")
def gcs_emulator() -> Iterator[str]:
    """Address of a Cloud Storage emulator."""
    try:
        binary = build(TOOLS["gcsemulator"])
    except (OSError, subprocess.CalledProcessError, SystemExit) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the Cloud Storage emulator cannot be built: {error}")
    port = free_port()
    process = subprocess.Popen(
        [binary, "-host", "127.0.0.1", "-port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_listens(port, process)
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(gcs_emulator: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new, empty bucket; the client library finds the emulator by the environment."""
    from google.cloud import storage as gcs

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_emulator)
    name = f"bucket-{uuid4().hex[:8]}"
    gcs.Client().create_bucket(name)
    return name


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    jobs.close()
