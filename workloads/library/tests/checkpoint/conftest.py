"""Servers of object stores, and jobs that are killed."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.training.deferred_compiler import defer_compiler
from tests.support import unavailable
from tests.tools.build import TOOLS, build
from workloads.library.tests.checkpoint.jobs import Jobs, newest
from workloads.library.tests.checkpoint.saves.faulty_proxy import FaultyProxy
from workloads.library.tests.processes import until
from workloads.library.tests.training.elastic.gangs import free_ports

# An optimizer's first step in a process would import torch's compiler, which takes longer than most
# tests here.
defer_compiler()


def listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
    return False


@pytest.fixture(scope="session")
def gcs_emulator() -> Iterator[str]:
    """The address of a Cloud Storage emulator."""
    try:
        binary = build(TOOLS["gcsemulator"])
    except (OSError, subprocess.CalledProcessError, SystemExit) as error:
        unavailable(f"the Cloud Storage emulator cannot be built: {error}")
    (port,) = free_ports(1)
    command = [
        str(binary),
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: listens(port), command[0], alive=lambda: process.poll() is None)
        yield f"http://127.0.0.1:{port}"
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


@pytest.fixture
def proxy(gcs_emulator: str) -> Iterator[FaultyProxy]:
    """A proxy in front of the emulator, without faults until it has a rule."""
    faulty_proxy = FaultyProxy(gcs_emulator)
    yield faulty_proxy
    faulty_proxy.close()


@pytest.fixture(scope="session")
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture(scope="session")
def pristine(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two committed checkpoints, at steps 3 and 6, written by two ranks. Not to be changed."""
    folder = tmp_path_factory.mktemp("pristine")
    assert jobs.run(folder / "url", folder, world=2, every=3, steps=6) == [0, 0]
    assert newest(folder / "url") == 6
    return folder / "url"


@pytest.fixture
def url(pristine: Path, tmp_path: Path) -> Path:
    """A copy of `pristine`."""
    return Path(shutil.copytree(pristine, tmp_path / "url"))


@pytest.fixture(autouse=True)
def nothing_is_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "jobs" in request.fixturenames:
        request.getfixturevalue("jobs").end_all()
