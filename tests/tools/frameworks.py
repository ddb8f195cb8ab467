"""`python -m tests.tools.frameworks`: Hugging Face Trainer and Lightning in a folder of their own.

They are no dependencies of ours: the callbacks' tests put this folder on PYTHONPATH. What our own locks
already hold (torch, numpy, ...) is not installed twice. `... frameworks lock` writes the lock anew.
"""

import hashlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "frameworks.txt"
WANTED = ("transformers", "accelerate", "lightning", "torchdata")


def _bootstrap() -> ModuleType:
    """The set-up script knows where uv and the cache are."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / ".ci" / "bootstrap.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def folder() -> Path:
    key = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    return _bootstrap().CACHE / f"frameworks-{key}"


def install() -> Path:
    """Into the user's cache, once for each lock; a run that is killed leaves nothing half done."""
    place = folder()
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as half:
            target = ("--python", sys.executable, "--target", f"{half}/site")
            options = ("--quiet", "--no-deps", "--require-hashes", *target)
            subprocess.run([_bootstrap().find_uv(), "pip", "install", *options, "-r", str(LOCK)], check=True)
            Path(half, "site").rename(place)
    return place


def lock() -> None:
    ours = re.findall(r"^([a-z0-9_.-]+)==", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
    left_out = [flag for name in ours for flag in ("--no-emit-package", name)]
    options = [
        "--quiet",
        "--universal",
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
        "--python-version",
        "3.11",
    ]
    constraint = ["-c", "requirements/dev.txt", "-", "-o", str(LOCK)]
    command = [_bootstrap().find_uv(), "pip", "compile", *options, *left_out, *constraint]
    subprocess.run(command, cwd=ROOT, input="\n".join(WANTED), text=True, check=True, stdout=subprocess.DEVNULL)
    kept = [line for line in LOCK.read_text().splitlines() if not line.lstrip().startswith("#")]
    LOCK.write_text("\n".join(kept) + "\n")


if __name__ == "__main__":
    lock() if sys.argv[1:] == ["lock"] else print(install())
