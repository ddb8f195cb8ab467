"""Microsoft's own emulator of Azure Blob Storage, from its npm package, in the user's cache: once for each lock."""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.tools.build import CACHE, HERE

PINS = HERE / "azurite"
FILES = ("package.json", "package-lock.json")


def install() -> Path:
    """The program that node runs; a run that is killed leaves nothing half done."""
    key = hashlib.sha256(b"".join((PINS / name).read_bytes() for name in FILES)).hexdigest()[:16]
    place = CACHE / f"azurite-{key}"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            half = Path(folder, "azurite")
            half.mkdir()
            for name in FILES:
                shutil.copy(PINS / name, half)
            options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            subprocess.run(["npm", "ci", "--prefix", str(half), *options], check=True, stdout=subprocess.DEVNULL)
            half.rename(place)
    return place / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
