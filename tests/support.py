"""What several tiers of tests share."""

import fcntl
import importlib.util
import os
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
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
    """A command with what it printed, whatever it ended with."""
    return subprocess.run(
        words,
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def program(path: Path, text: str) -> Path:
    """A script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o700)
    return path


def require(condition: object, reason: str) -> None:
    """Skip on a laptop that lacks something; fail where CI is set, so that no tier disappears
    unseen.
    """
    if not condition:
        unavailable(reason)


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"this tier cannot run and CI is set: {reason}", pytrace=False)
    pytest.skip(reason)


def needs(environment: str) -> pytest.MarkDecorator:
    """Of a test of one shipped environment, which a template may not have."""
    there = (ROOT / "infra" / "environments" / f"{environment}.py").is_file()
    return pytest.mark.skipif(not there, reason=f"no environment {environment} here")


@contextmanager
def locked(file: Path) -> Generator[None]:
    """One process at a time, for what several workers or runs share."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def bootstrap() -> ModuleType:
    """The set-up script, which knows where uv and the cache are."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / ".ci" / "bootstrap.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commits(folder: Path) -> list[Path]:
    """Of a storage that others write and clean meanwhile: Path.rglob ends where a folder goes while
    it is read.
    """
    return [Path(at, "COMMIT.json") for at, _, files in os.walk(folder) if "COMMIT.json" in files]
