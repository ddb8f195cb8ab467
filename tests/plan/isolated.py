"""Tools whose pins conflict with ours: an environment each, in the user's cache, keyed by the hash
of its lock.
"""

import hashlib
import os
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
