"""Each image as its Dockerfile makes it, without an engine: its command starts from this wheel and
this lock alone.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

from tests.support import ROOT, ran
from workloads.images import builders, pins

pytestmark = pytest.mark.process
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)
_ENTRYPOINT = re.compile(r"^ENTRYPOINT (\[.*\])$", re.MULTILINE)


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`laid_out("mover")`: the packages of the image of a role, made once for all roles with its
    lock.
    """

    @cache
    def wheel() -> Path:
        """As `make images` takes it: built here, or in a template the pinned one."""
        if not (ROOT / "workloads/library").is_dir():
            return pins.wheel_in(ROOT / pins.VENDOR)
        folder = tmp_path_factory.mktemp("vendor")
        command = [
            sys.executable,
            str(ROOT / ".ci/wheel.py"),
            "--wheel-only",
            "--out-dir",
            str(folder),
        ]
        subprocess.run(command, check=True, timeout=200)
        return pins.wheel_in(folder)

    @cache
    def of(lock: Path) -> Path:
        return packages(lock, wheel(), tmp_path_factory.mktemp(lock.stem))

    return lambda role: of(pins.lock_of(ROOT, role))


@pytest.mark.parametrize("role", pins.ROLES)
def test_the_command_of_an_image_starts_from_what_the_image_holds(
    role: str, laid_out: Callable[[str], Path]
) -> None:
    (entry,) = _ENTRYPOINT.findall((ROOT / builders.DOCKERFILE).read_text())
    start = json.loads(entry)[1:]
    ended = run([*start, *pins.ROLES[role].command.split(), "--help"], laid_out(role))
    assert ended.returncode == 0 and "Usage:" in ended.stdout, ended.stderr[-2000:]


def test_a_file_that_the_wheel_lacks_is_noticed(laid_out: Callable[[str], Path]) -> None:
    file = laid_out("mover") / "holdfast/support/command_line.py"
    moved = file.rename(file.with_suffix(".lost"))
    try:
        assert run(["-m", "holdfast", "--help"], laid_out("mover")).returncode
    finally:
        moved.rename(file)


def packages(lock: Path, wheel: Path, folder: Path) -> Path:
    """What the lock names, as links to what is installed here, and the wheel's files."""
    made = folder / "packages"
    made.mkdir()
    for name in _PIN.findall(lock.read_text()):
        try:
            listed = files(name) or []
        except PackageNotFoundError:  # of another system
            continue
        # File by file: namespace packages as google share a folder.
        for path in listed:
            if path.suffix not in (".pyc", ".h") and ".." not in path.parts:
                link = made / path
                # a lock may hold two versions of a package, by Python's version
                link.unlink(missing_ok=True)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(str(path.locate()))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(made)
    return made


def run(words: list[str], packages: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(packages),
        "HOME": str(packages.parent),
    }
    # -S: this interpreter's own packages are not the image's.
    command = [sys.executable, "-S", *words]
    return ran(command, packages.parent, environment)
