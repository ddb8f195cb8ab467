"""Tools whose pins conflict with ours: an environment each, in the user's cache, keyed by the hash
of its lock.

Python's have a lock in requirements; those of Node a folder there.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import support

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "isolated"


def environment(name: str, timeout_s: float = 600) -> Path:
    """The folder of a virtual environment with exactly requirements/<name>.txt; made once."""
    lock = ROOT / "requirements" / f"{name}.txt"
    key = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    home = CACHE / f"{name}-{key}"
    with support.lock(CACHE / f"{name}.lock"):
        if not (home / ".ready").exists():
            _make(home, lock, timeout_s)
            (home / ".ready").touch()
    return home


def node_commands(folder: Path, timeout_s: float = 600) -> Path:
    """The commands of exactly the packages of a folder's package-lock.json; installed once."""
    lock = folder / "package-lock.json"
    key = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    home = CACHE / f"node-{key}"
    with support.lock(CACHE / f"node-{key}.lock"):
        if not (home / ".ready").exists():
            home.mkdir(exist_ok=True)
            for name in ("package.json", lock.name):
                shutil.copy(folder / name, home)
            _install_node_packages(home, timeout_s)
            (home / ".ready").touch()
    return home / "node_modules" / ".bin"


def _install_node_packages(home: Path, timeout_s: float) -> None:
    npm = Path(sys.prefix) / "bin" / "npm"
    options = ["--no-audit", "--no-fund", "--loglevel=error", "--prefer-offline"]
    path = os.pathsep.join([str(npm.parent), os.environ["PATH"]])
    try:
        subprocess.run(
            [npm, "ci", *options],
            cwd=home,
            env={**os.environ, "PATH": path},
            check=True,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except (OSError, subprocess.SubprocessError) as error:
        support.unavailable(
            f"{home.name} cannot be installed: {getattr(error, 'stderr', '') or error}"
        )


def _make(home: Path, lock: Path, timeout_s: float) -> None:
    uv = support.bootstrap().find_uv()
    words = [
        "pip",
        "sync",
        "--quiet",
        "--compile-bytecode",
        "--require-hashes",
        "--python",
        str(home / "bin/python"),
    ]
    try:
        for command in (
            [
                uv,
                "venv",
                "--quiet",
                "--clear",
                "--python",
                sys.executable,
                str(home),
            ],
            [uv, *words, str(lock)],
        ):
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
    except (OSError, subprocess.SubprocessError) as error:
        support.unavailable(
            f"{lock.name} cannot be installed: {getattr(error, 'stderr', '') or error}"
        )


def site_packages(home: Path) -> Path:
    return next(home.glob("lib/python3*/site-packages"))
