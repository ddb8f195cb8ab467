"""Fixtures of the node tier. Everything here needs root, and leaves the host as it was."""

import importlib.util
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.vocabulary.pools import Pool
from tests import platforms, support
from tests.cluster.sim.control_plane import NEEDED
from tests.cluster.sim.world import World
from tests.tools.build import TOOLS
from workloads.images import pins
from workloads.library.tests.node.lab.image import BUSYBOX

if TYPE_CHECKING:
    from workloads.library.tests.node.lab.images import Rendered
    from workloads.library.tests.node.lab.lab import Lab

HERE = Path(__file__).parent
COMMANDS = ("containerd", "ctr", "runc", "dbus-daemon", "unshare", "mount", "ip")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.node)


def find_missing() -> str:
    """Returns what this host lacks, or nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "real nodes need root on Linux"
    absent = [name for name in COMMANDS if not shutil.which(name)]
    absent += [] if BUSYBOX.exists() else ["busybox"]
    absent += [] if importlib.util.find_spec("dbus_fast") else ["dbus-fast"]
    if absent:
        return f"`make test-node` installs {', '.join(absent)}"
    unbuilt = []
    for name in (*NEEDED, "kubelet", "jobset"):
        if not TOOLS[name].binary.exists():
            unbuilt.append(name)
    return f"`make test-node` builds {', '.join(unbuilt)}" if unbuilt else ""


@pytest.fixture(scope="session")
def lab() -> "Iterator[Lab]":
    missing = find_missing()
    support.require(not missing, missing)
    from workloads.library.tests.node.lab.lab import Lab

    node_lab = Lab()
    yield node_lab
    node_lab.close()


@pytest.fixture
def world(lab: "Lab") -> Iterator[World]:
    test_world = World(lab.api, f"n-{uuid.uuid4().hex[:6]}")
    test_world.create()
    yield test_world
    test_world.delete()
    for machine in list(lab.machines.values()):
        lab.forget(machine)


@pytest.fixture
def folder(lab: "Lab") -> Path:
    """Makes a folder with a short path, for the socket in it; pods do not run as root."""
    path = lab.folder / uuid.uuid4().hex[:6]
    path.mkdir()
    path.chmod(0o777)
    return path


@pytest.fixture(scope="session")
def spot() -> Pool:
    return platforms.load("example").pool("spot-a100")


@pytest.fixture(scope="session")
def spot_l4() -> Pool:
    return platforms.load("example").pool("spot-l4-g2-standard-8")


@pytest.fixture(scope="session")
def rendered() -> "Iterator[Rendered]":
    """The example's manifests and images, really built."""
    from tests.workloads.images.registry import Registry, serving
    from workloads.library.tests.node.lab import images

    absent = []
    for name in images.COMMANDS:
        if not shutil.which(name):
            absent.append(name)
    support.require(not absent, f"`make test-node` installs {', '.join(absent)}")
    with serving(Registry(images.HOME / "registry")) as registry:
        builder = images.Builder(registry)
        yield builder.render([*pins.ROLES])
