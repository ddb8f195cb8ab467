from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.tools import frameworks
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.locked_packages import install_packages
from workloads.library.tests.training.frameworks.gang import fork_server
from workloads.library.tests.training.runs import Run, run_server


@pytest.fixture(scope="session")
def reference_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run that every disturbed one has to equal, to the last bit; it is started from nothing."""
    run = Run(folder=tmp_path_factory.mktemp("undisturbed"))
    assert run.complete() == 0, run.log()
    return run


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with run_server() as server:
        yield server


@pytest.fixture(scope="session")
def site() -> Path:
    """Returns the folder in which the frameworks are installed."""
    return install_packages(frameworks.FRAMEWORKS)


@pytest.fixture(scope="session")
def trackers() -> Path:
    """Returns the folder in which TensorBoard, MLflow and W&B are installed."""
    return install_packages(frameworks.TRACKERS)


@pytest.fixture(scope="session")
def framework_server(site: Path, trackers: Path) -> Iterator[ForkServer]:
    """Its imports take longer than what most tests start in it."""
    with closing(fork_server(site, trackers)) as server:
        yield server
