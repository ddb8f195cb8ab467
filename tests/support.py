"""Helpers that several tiers of tests share."""

import fcntl
import importlib.util
import os
import subprocess
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from importlib import metadata
from pathlib import Path, PurePath
from types import ModuleType
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[1]


def ran(
    words: Sequence[str | Path],
    folder: Path = ROOT,
    variables: Mapping[str, str] = os.environ,
    timeout_s: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output and exit code."""
    return subprocess.run(
        words,
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


class HttpServer(ThreadingHTTPServer):
    """A server that a burst of clients can reach while a busy machine does not let it accept.

    By default only five connections wait to be accepted. The system drops those beyond, which are
    tried again after seconds, or reset.
    """

    request_queue_size = 256


def program(path: Path, text: str) -> Path:
    """Write an executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o700)
    return path


def link_distribution(name: str, site: Path) -> None:
    """Link an installed distribution into another site-packages.

    A package is one link, so that its byte code need not be compiled again: PyTorch's takes a
    minute. Distributions share namespace packages, whose files are links of their own.
    """
    distribution = metadata.distribution(name)
    files = [file for file in distribution.files or [] if ".." not in file.parts]
    packages = {file.parent for file in files if file.name == "__init__.py"}
    for source in dict.fromkeys(_outermost(file, packages) for file in files):
        if source.suffix not in (".pyc", ".h"):
            link = site / source
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(str(distribution.locate_file(source)))


def _outermost(file: PurePath, packages: Collection[PurePath]) -> PurePath:
    """Return the outermost of `packages` that holds the file; the file if none does."""
    for folder in reversed(file.parents):
        if folder in packages:
            return folder
    return file


def require(condition: object, reason: str) -> None:
    """Skip the test unless `condition`; fail if CI is set, so that no tier disappears unnoticed."""
    if not condition:
        unavailable(reason)


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"this tier cannot run and CI is set: {reason}", pytrace=False)
    pytest.skip(reason)


def needs(environment: str) -> pytest.MarkDecorator:
    """Mark a test of one shipped environment, which a template may not have."""
    exists = (ROOT / "infra" / "environments" / f"{environment}.py").is_file()
    return pytest.mark.skipif(not exists, reason=f"no environment {environment} here")


@contextmanager
def lock(file: Path) -> Generator[None]:
    """Let one process at a time pass: several workers or runs share the resource."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def bootstrap() -> ModuleType:
    """Import the set-up script, which finds uv and the cache."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / ".ci" / "bootstrap.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commits(folder: Path) -> list[Path]:
    """List the commits in a storage that other processes write and clean at the same time.

    Path.rglob would stop when a folder is removed while it is read.
    """
    paths = []
    for parent, _, files in os.walk(folder):
        if "COMMIT.json" in files:
            paths.append(Path(parent, "COMMIT.json"))
    return paths
