"""Each image as its Dockerfile lays it out, without an engine: its command starts from these files and this lock alone."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

from workloads.images import attest, pins

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]
_COPY = re.compile(r"^COPY (?!--from|requirements/)(\S+) (\S+)$", re.MULTILINE)
_ENTRYPOINT = re.compile(r"^ENTRYPOINT (\[.*\])$", re.MULTILINE)
_CHECKED = re.compile(r"^RUN python (-m .*?--help)", re.MULTILINE)


@pytest.mark.parametrize("role", pins.roles())
def test_the_command_of_an_image_starts_from_what_the_image_holds(role: str, tmp_path: Path) -> None:
    dockerfile = (ROOT / f"workloads/images/{role}.Dockerfile").read_text()
    app, packages = tmp_path / "app", tmp_path / "packages"
    lay_out(dockerfile, app)
    install(attest.lock_of(ROOT, role), packages)
    (entry,), (checked,) = _ENTRYPOINT.findall(dockerfile), _CHECKED.findall(dockerfile)
    for words in ([*json.loads(entry)[1:], "--help"], checked.split()):
        ended = run(words, app, packages)
        assert ended.returncode == 0, f"{words}: {ended.stderr[-2000:]}"
        assert "Usage:" in ended.stdout


def test_a_file_that_the_image_lacks_is_noticed(tmp_path: Path) -> None:
    app, packages = tmp_path / "app", tmp_path / "packages"
    lay_out((ROOT / "workloads/images/trainer.Dockerfile").read_text(), app)
    install(attest.lock_of(ROOT, "trainer"), packages)
    (app / "holdfast/command_line.py").unlink()
    assert run(["-m", "holdfast", "--help"], app, packages).returncode


def lay_out(dockerfile: str, app: Path) -> None:
    """The COPY lines of the last stage, as a builder carries them out."""
    for source, target in _COPY.findall(dockerfile):
        come_from, to = ROOT / source, app / target
        if come_from.is_dir():
            shutil.copytree(come_from, to, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            to = to / come_from.name if target.endswith("/") else to
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(come_from, to)


def install(lock: Path, packages: Path) -> None:
    """What the lock names, as links to what is installed here; a package of another system is left out."""
    packages.mkdir()
    for component in attest.components(lock.read_text()):
        try:
            listed = files(component["name"]) or []
        except PackageNotFoundError:
            continue
        # File by file: namespace packages as google share a folder.
        for path in listed:
            if path.suffix not in (".pyc", ".h") and ".." not in path.parts:
                link = packages / path
                link.unlink(missing_ok=True)  # a lock may hold two versions of a package, by Python's version
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(str(path.locate()))


def run(words: list[str], app: Path, packages: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{app}{os.pathsep}{packages}", "HOME": str(app.parent)}
    # -S: this interpreter's own packages are not the image's.
    command = [sys.executable, "-S", *words]
    return subprocess.run(command, cwd=app, env=environment, capture_output=True, text=True, timeout=120)
