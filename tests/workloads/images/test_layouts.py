"""Tests that the command of each image starts from its wheel and its lock alone.

The packages of an image are laid out as its Dockerfile does, without a container engine.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.support import ROOT, link_distribution, ran
from workloads.images import builders, pins

pytestmark = pytest.mark.process
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)
_ENTRYPOINT = re.compile(r"^ENTRYPOINT (\[.*\])$", re.MULTILINE)


@pytest.fixture(scope="module")
def get_layout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the packages of a role's image, made once for all roles with the same lock."""

    @cache
    def wheel() -> Path:
        """Returns the wheel of `make images`: built here, or in a template the pinned one."""
        if not (ROOT / "workloads/library").is_dir():
            return pins.find_wheel(ROOT / pins.VENDOR)
        folder = tmp_path_factory.mktemp("vendor")
        command = [
            sys.executable,
            str(ROOT / ".ci/wheel.py"),
            "--wheel-only",
            "--out-dir",
            str(folder),
        ]
        subprocess.run(command, check=True, timeout=200)
        return pins.find_wheel(folder)

    @cache
    def layout(lock: Path) -> Path:
        return lay_out(lock, wheel(), tmp_path_factory.mktemp(lock.stem))

    return lambda role: layout(pins.find_lock(ROOT, role))


@pytest.mark.parametrize("role", pins.ROLES)
def test_image_command_starts_from_the_image_alone(
    role: str, get_layout: Callable[[str], Path]
) -> None:
    (entry,) = _ENTRYPOINT.findall((ROOT / builders.DOCKERFILE).read_text())
    start = json.loads(entry)[1:]
    command = [*start, *pins.ROLES[role].command.split(), "--help"]
    process = run(command, get_layout(role))
    assert process.returncode == 0, process.stderr[-2000:]
    assert "Usage:" in process.stdout, process.stderr[-2000:]


def test_file_missing_in_the_wheel_is_noticed(get_layout: Callable[[str], Path]) -> None:
    file = get_layout("mover") / "holdfast/support/command_line.py"
    moved = file.rename(file.with_suffix(".lost"))
    try:
        assert run(["-m", "holdfast", "--help"], get_layout("mover")).returncode
    finally:
        moved.rename(file)


def lay_out(lock: Path, wheel: Path, folder: Path) -> Path:
    """Makes a folder with the wheel's files and links to the installed packages of the lock."""
    packages = folder / "packages"
    packages.mkdir()
    # A lock may have two versions of a package, by Python's version.
    for name in dict.fromkeys(_PIN.findall(lock.read_text())):
        # Otherwise it is a package for another system.
        with suppress(PackageNotFoundError):
            link_distribution(name, packages)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return packages


def run(words: list[str], packages: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(packages),
        "HOME": str(packages.parent),
    }
    # -S leaves out this interpreter's own packages, which the image does not have.
    command = [sys.executable, "-S", *words]
    return ran(command, packages.parent, environment)
